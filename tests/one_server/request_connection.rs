//! The connection that a task of the user's runtime reads: servers that flood it, and threads that stop while they read it.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, JoinHandle, ThreadId},
    time::Duration,
};

use futures_executor::block_on;
use lock_core::{LockError, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, AfterLoss, Direction, Frames, HANG, Proxy, RedisServer, SECOND, assert_fails,
    connect_with_time_out, eventually_blocking, nothing_is_left_blocking,
};
use tokio::{task::yield_now, time::sleep};

use crate::runtimes::{connected, lock_once, options, runtime};

/// Runs `work` on a thread, which must end. Otherwise the test fails, and leaves the thread.
fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    result.recv_timeout(HANG).expect("no hang and no panic")
}

#[test]
fn a_server_that_sends_without_end_does_not_starve_other_tasks() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let (ticks, rounds) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let is_over = Arc::new(AtomicBool::new(false));
    let here = runtime();
    let locks = here.block_on(connect_with_time_out(HANG, &proxy.url()));
    here.block_on(connected(&locks, &server, 2));
    let held = here.block_on(locks.acquire_free("held", LockOptions::new(SECOND * 15)));
    proxy.flood();
    let user = thread::spawn({
        let (ticks, rounds, is_over) = (ticks.clone(), rounds.clone(), is_over.clone());
        move || {
            here.spawn(async move {
                loop {
                    sleep(Duration::from_millis(1)).await;
                    ticks.fetch_add(1, SeqCst);
                }
            });
            here.block_on(async {
                while !is_over.load(SeqCst) {
                    lock_once(&locks, "k").await;
                    rounds.fetch_add(1, SeqCst);
                }
                // The reply to a renewal arrives after all messages, which a busy machine may not read within the ttl.
                drop(held);
            });
        }
    });
    let renewed = server.expires_at("lock:held");
    eventually_blocking(HANG, "other tasks continue", || ticks.load(SeqCst) > 50);
    eventually_blocking(HANG, "a lock is taken", || rounds.load(SeqCst) > 0);
    eventually_blocking(HANG, "renewals are sent", || {
        server.expires_at("lock:held") > renewed
    });
    is_over.store(true, SeqCst);
    user.join().expect("no panic");
}

/// On a thread without a runtime, requests use the connection of the manager's thread.
#[test]
fn a_server_that_sends_without_end_and_never_replies_is_unavailable() {
    for has_runtime in [false, true] {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let here = runtime();
        let locks = here.block_on(connect_with_time_out(SECOND / 5, &proxy.url()));
        here.block_on(connected(&locks, &server, 2));
        proxy.lose(Direction::Requests, Frames::every(), AfterLoss::Silence);
        proxy.flood();
        let refused = ends(move || {
            let request = locks.try_acquire("k", options());
            if has_runtime {
                here.block_on(request)
            } else {
                block_on(request)
            }
        });
        assert_fails!(refused, LockError::Unavailable { .. });
    }
}

/// Stops its thread once, when that thread wakes a task, as if the system no longer ran the thread.
struct Stopping {
    thread: ThreadId,
    is_woken: AtomicBool,
    is_stopped: AtomicBool,
    stopped: mpsc::Sender<()>,
    may_continue: Mutex<mpsc::Receiver<()>>,
}

impl Wake for Stopping {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, SeqCst);
        if thread::current().id() == self.thread && !self.is_stopped.swap(true, SeqCst) {
            self.stopped.send(()).expect("the test waits");
            let may_continue = self.may_continue.lock().expect("no panic");
            may_continue.recv_timeout(HANG * 3).expect("it continues");
        }
    }
}

/// Returns the numbers of the connections that runtimes have to a server.
fn numbers(server: &RedisServer) -> BTreeSet<String> {
    let list = server.cli(&["CLIENT", "LIST"]);
    let list: String = redis::from_redis_value(list).expect("lines of text");
    // The connection of a manager's thread has a subscription.
    let is_meant = |line: &&str| line.contains("name=lock-core:") && line.contains(" sub=0 ");
    let lines = list.lines().filter(is_meant);
    let words = lines.filter_map(|line| line.split(' ').next());
    words.map(str::to_owned).collect()
}

/// A runtime whose only thread is stopped while it polls the task of its connection.
struct Stopped {
    connection: String,
    resume: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Stopped {
    /// Requires a manager that has only the connection of its thread.
    fn start(locks: &LockManager, server: &RedisServer) -> Self {
        let (stopped, is_stopped) = mpsc::channel();
        let (resume, may_continue) = mpsc::channel();
        let here = runtime();
        here.block_on(connected(locks, server, 2));
        let connection = numbers(server).pop_last();
        let locks = locks.clone();
        let thread = thread::spawn(move || {
            let waker = Stopping {
                thread: thread::current().id(),
                is_woken: AtomicBool::new(false),
                is_stopped: AtomicBool::new(false),
                stopped,
                may_continue: Mutex::new(may_continue),
            };
            here.block_on(stop(&locks, &Arc::new(waker)));
        });
        is_stopped.recv_timeout(HANG).expect("it is stopped");
        Self {
            connection: connection.expect("one"),
            resume,
            thread,
        }
    }

    fn is_connected(&self, server: &RedisServer) -> bool {
        numbers(server).contains(&self.connection)
    }

    fn resume(self) {
        self.resume.send(()).expect("it is stopped");
        self.thread.join().expect("it continues");
    }
}

/// Takes locks until this thread was stopped while it read a reply, and has continued.
async fn stop(locks: &LockManager, stopping: &Arc<Stopping>) {
    let waker = Waker::from(stopping.clone());
    while !stopping.is_stopped.load(SeqCst) {
        stopping.is_woken.store(false, SeqCst);
        let mut acquire = Box::pin(locks.acquire("stopped", options()));
        let first = acquire.as_mut().poll(&mut Context::from_waker(&waker));
        // The task that reads runs meanwhile. If this thread is slow, the manager's thread reads the reply.
        while first.is_pending() && !stopping.is_woken.load(SeqCst) {
            yield_now().await;
        }
        let guard = match first {
            Poll::Ready(guard) => guard,
            Poll::Pending => acquire.await,
        };
        drop(guard.expect("free"));
    }
}

/// Starts more runtimes than there are connections for, each of which takes this many locks.
fn others(locks: &LockManager, rounds: usize) -> Vec<JoinHandle<()>> {
    let runtimes = (0..12).map(|number| {
        let locks = locks.clone();
        thread::spawn(move || {
            runtime().block_on(async {
                for round in 0..rounds {
                    let key = format!("k{number}:{round}");
                    drop(locks.acquire_free(key, options()).await);
                }
            });
        })
    });
    runtimes.collect()
}

#[test]
fn a_thread_that_is_stopped_while_it_polls_keeps_its_connection() {
    let server = RedisServer::start();
    let locks = runtime().block_on(connect_with_time_out(HANG, &server.url()));
    let stopped = Stopped::start(&locks, &server);
    let short = LockOptions::new(SECOND * 6).wait(HANG);
    let held = block_on(locks.acquire("held", short)).expect("free");
    let others = others(&locks, 20);
    for _ in 0..3 {
        let before = server.expires_at("lock:held");
        eventually_blocking(HANG, "a lease is renewed", || {
            server.expires_at("lock:held") > before
        });
    }
    assert!(stopped.is_connected(&server));
    let connection = stopped.connection.clone();
    stopped.resume();
    for other in others {
        other.join().expect("each request has its reply");
    }
    assert!(numbers(&server).contains(&connection));
    block_on(held.release()).expect("held");
    nothing_is_left_blocking(&server);
}
