//! The connection that a task of the user's runtime reads, where a server, a thread or a waker is not as it should be.

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
    AcquireFree as _, After, Direction, HANG, Proxy, RedisServer, ReleaseHeld as _, SECOND, Which,
    assert_fails, eventually, eventually_blocking,
};
use tokio::{
    runtime::{Builder, Runtime},
    task::yield_now,
    time::sleep,
};

fn options() -> LockOptions {
    LockOptions::new(HANG * 5).wait(HANG)
}

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

async fn lock_once(locks: &LockManager, key: &str) {
    let guard = locks.acquire_free(key, options()).await;
    guard.release_held().await;
}

/// A reply may take this long.
async fn with_time_out(command: Duration, url: &str) -> LockManager {
    let locks = LockManager::builder().command_timeout(command);
    locks.connect(url).await.expect("it is up")
}

/// Takes locks until the managers have this many connections. The last one is that of the calling runtime.
async fn connected(locks: &LockManager, server: &RedisServer, connections: usize) {
    eventually(HANG, "the runtime has a connection", async || {
        lock_once(locks, "before").await;
        server.connections_of_managers() >= connections
    })
    .await;
}

/// Runs `work` on a thread, which must end. If it does not, the test fails, and the thread is left.
fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    result.recv_timeout(HANG).expect("no hang and no panic")
}

#[test]
fn a_server_that_never_stops_sending_leaves_a_runtime_its_other_tasks() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let (ticks, rounds) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let is_over = Arc::new(AtomicBool::new(false));
    let here = runtime();
    let locks = here.block_on(with_time_out(HANG, &proxy.url()));
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
                // The reply to a renewal is behind all messages, and a busy machine may take longer for those than a lease lasts.
                drop(held);
            });
        }
    });
    let renewed = server.expires_at("lock:held");
    eventually_blocking(HANG, "other tasks go on", || ticks.load(SeqCst) > 50);
    eventually_blocking(HANG, "a lock is taken", || rounds.load(SeqCst) > 0);
    eventually_blocking(HANG, "renewals leave", || {
        server.expires_at("lock:held") > renewed
    });
    is_over.store(true, SeqCst);
    user.join().expect("no panic");
}

/// On a thread without a runtime, requests use the connection of the manager's thread.
#[test]
fn a_server_that_sends_without_end_and_never_replies_is_given_up() {
    for has_runtime in [false, true] {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let here = runtime();
        let locks = here.block_on(with_time_out(SECOND / 5, &proxy.url()));
        here.block_on(connected(&locks, &server, 2));
        proxy.lose(Direction::Requests, Which::every(), After::Silence);
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

/// Stops its thread where that thread wakes a task, once, as if the system did not run the thread any more.
struct Stopping {
    thread: ThreadId,
    is_woken: AtomicBool,
    is_stopped: AtomicBool,
    stopped: mpsc::Sender<()>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl Wake for Stopping {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, SeqCst);
        if thread::current().id() == self.thread && !self.is_stopped.swap(true, SeqCst) {
            self.stopped.send(()).expect("the test waits");
            let go_on = self.go_on.lock().expect("no panic");
            go_on.recv_timeout(HANG * 3).expect("it may go on");
        }
    }
}

/// The numbers of the connections that runtimes have to a server.
fn numbers(server: &RedisServer) -> BTreeSet<String> {
    let list = server.cli(&["CLIENT", "LIST"]);
    let list: String = redis::from_redis_value(list).expect("lines of text");
    // That of a manager's thread has a subscription.
    let is_meant = |line: &&str| line.contains("name=lock-core:") && line.contains(" sub=0 ");
    let lines = list.lines().filter(is_meant);
    let words = lines.filter_map(|line| line.split(' ').next());
    words.map(str::to_owned).collect()
}

/// A runtime of which the only thread stands still while it polls the driver of its connection.
struct Stopped {
    connection: String,
    go_on: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Stopped {
    /// The manager has no connection but that of its thread.
    fn start(locks: &LockManager, server: &RedisServer) -> Self {
        let (stopped, is_stopped) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel();
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
                go_on: Mutex::new(may_go_on),
            };
            here.block_on(stop(&locks, &Arc::new(waker)));
        });
        is_stopped.recv_timeout(HANG).expect("it is stopped");
        Self {
            connection: connection.expect("one"),
            go_on,
            thread,
        }
    }

    fn is_connected(&self, server: &RedisServer) -> bool {
        numbers(server).contains(&self.connection)
    }

    fn go_on(self) {
        self.go_on.send(()).expect("it is stopped");
        self.thread.join().expect("it goes on");
    }
}

/// Takes locks until this thread has been stopped where it read a reply, and has gone on.
async fn stop(locks: &LockManager, stopping: &Arc<Stopping>) {
    let waker = Waker::from(stopping.clone());
    while !stopping.is_stopped.load(SeqCst) {
        stopping.is_woken.store(false, SeqCst);
        let mut acquire = Box::pin(locks.acquire("stopped", options()));
        let first = acquire.as_mut().poll(&mut Context::from_waker(&waker));
        // The task that reads runs meanwhile. If the thread is slow, that of the manager reads this reply.
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

/// More runtimes than there are connections for, which take this many locks each.
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

fn nothing_is_left(server: &RedisServer) {
    eventually_blocking(HANG, "no lock is left", || server.keys("lock:*").is_empty());
}

#[test]
fn a_thread_that_stands_still_while_it_polls_costs_its_connection_nothing() {
    let server = RedisServer::start();
    let locks = runtime().block_on(with_time_out(HANG, &server.url()));
    let stopped = Stopped::start(&locks, &server);
    let short = LockOptions::new(SECOND).wait(HANG);
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
    stopped.go_on();
    for other in others {
        other.join().expect("each request has its reply");
    }
    assert!(numbers(&server).contains(&connection));
    block_on(held.release()).expect("held");
    nothing_is_left(&server);
}
