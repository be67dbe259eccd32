//! Several runtimes in one process. Each has a connection for its requests, which a task of that runtime reads. A runtime that
//! ends, blocks its threads, or is not driven withholds no reply.

use std::{
    future::poll_fn,
    sync::mpsc,
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use futures_executor::block_on;
use lock_core::{LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, Direction, HANG, Proxy, RedisServer, ReleaseHeld as _, SECOND, Scope,
    connect, eventually, eventually_blocking, nothing_is_left_blocking,
};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
};

/// Options with a ttl so long that no lock expires during a test.
pub(crate) fn options() -> LockOptions {
    LockOptions::new(HANG * 5).wait(HANG)
}

pub(crate) fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

/// Polls a future once in the runtime. This thread, which has no runtime, continues it.
fn begun_in<T, F>(runtime: &Runtime, future: F) -> impl Future<Output = T> + use<T, F>
where
    F: Future<Output = T>,
{
    let mut future = Box::pin(future);
    // If the thread is slow, the reply to the first request may arrive at once.
    let first = poll_fn(|context| Poll::Ready(future.as_mut().poll(context)));
    let first = runtime.block_on(first);
    async move {
        match first {
            Poll::Ready(result) => result,
            Poll::Pending => future.await,
        }
    }
}

pub(crate) async fn lock_once(locks: &LockManager, key: &str) {
    let guard = locks.acquire_free(key, options()).await;
    guard.release_held().await;
}

/// Takes locks until the managers have this many connections, the last of which is that of the calling runtime.
pub(crate) async fn connected(locks: &LockManager, server: &RedisServer, connections: usize) {
    eventually(HANG, "the runtime has a connection", async || {
        lock_once(locks, "before").await;
        server.connections_of_managers() >= connections
    })
    .await;
}

/// There are more runtimes than connections for them, so a task of one runtime reads the replies to others.
#[test]
fn a_blocked_runtime_withholds_no_reply_from_those_that_share_its_connection() {
    let server = RedisServer::start();
    let locks = runtime().block_on(connect(&server.url()));
    let (stopped, is_stopped) = mpsc::channel();
    let (resume, may_continue) = mpsc::channel();
    let own = locks.clone();
    let blocked = thread::spawn(move || {
        runtime().block_on(async {
            lock_once(&own, "before").await;
            stopped.send(()).expect("the test waits");
            may_continue.recv_timeout(HANG * 3).expect("it continues");
            lock_once(&own, "after").await;
        });
    });
    is_stopped.recv_timeout(HANG).expect("it is blocked");
    let others: [_; 10] = std::array::from_fn(|number| {
        let locks = locks.clone();
        thread::spawn(move || {
            runtime().block_on(async {
                for round in 0..20 {
                    lock_once(&locks, &format!("{number}:{round}")).await;
                }
            });
        })
    });
    for other in others {
        eventually_blocking(HANG * 2, "it had all of its locks", || other.is_finished());
        other.join().expect("no panic");
    }
    resume.send(()).expect("it is blocked");
    blocked.join().expect("no panic");
    nothing_is_left_blocking(&server);
}

/// The request is sent by a runtime that is no longer driven, but still exists.
#[test]
fn a_request_of_a_runtime_that_is_not_driven_gets_its_reply() {
    let server = RedisServer::start();
    let kept = runtime();
    let locks = kept.block_on(connect(&server.url()));
    kept.block_on(lock_once(&locks, "before"));
    for round in 0..20 {
        let acquire = begun_in(&kept, locks.acquire(format!("k{round}"), options()));
        let guard = block_on(acquire).expect("free");
        block_on(begun_in(&kept, guard.release())).expect("held");
    }
    nothing_is_left_blocking(&server);
}

/// The manager's thread reads the reply. It learns at once that the runtime has ended, not at its next tick.
#[test]
fn a_request_of_a_runtime_that_has_ended_gets_its_reply() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = runtime().block_on(connect(&proxy.url()));
    // No reply arrives before the runtime has ended.
    proxy.delay(Direction::Replies, Duration::from_millis(10));
    let mut waits = Vec::new();
    for round in 0..20 {
        let ends = runtime();
        // The connection of a runtime is opened in the background of its first request.
        ends.block_on(lock_once(&locks, "before"));
        let acquire = begun_in(&ends, locks.acquire(format!("k{round}"), options()));
        drop(ends);
        let since = Instant::now();
        let guard = block_on(acquire).expect("free");
        waits.push(since.elapsed());
        drop(guard);
    }
    // A tick takes 100 ms. The shortest wait counts, because a busy machine may delay the others.
    let shortest = waits.iter().min().expect("twenty");
    assert!(*shortest < Duration::from_millis(60), "{waits:?}");
    nothing_is_left_blocking(&server);
}

#[test]
fn a_blocked_worker_withholds_no_reply_from_the_others() {
    let server = RedisServer::start();
    let workers = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let workers = workers.expect("a runtime");
    let locks = workers.block_on(connect(&server.url()));
    // If requests also read replies, one of some fifty rounds hangs.
    for _ in 0..200 {
        let (done, blocked) = mpsc::channel::<()>();
        let blocking = workers.spawn({
            let locks = locks.clone();
            async move {
                lock_once(&locks, "blocking").await;
                blocked.recv_timeout(HANG).expect("the others continue");
            }
        });
        let tasks = (0..8).map(|number| {
            let locks = locks.clone();
            workers.spawn(async move {
                for _ in 0..10 {
                    lock_once(&locks, &format!("k{number}")).await;
                }
            })
        });
        let tasks: Vec<_> = tasks.collect();
        eventually_blocking(HANG, "the others continue", || {
            // Wakes a sleeping worker, which then steals ready tasks from the blocked one. Tokio wakes none if the other worker was
            // about to sleep when they became ready: in one of 6,000 rounds, with or without locks.
            drop(workers.spawn(async {}));
            tasks.iter().all(JoinHandle::is_finished)
        });
        for task in tasks {
            workers.block_on(task).expect("no panic");
        }
        done.send(()).expect("it is blocked");
        workers.block_on(blocking).expect("no panic");
    }
    nothing_is_left_blocking(&server);
}

#[test]
fn more_runtimes_than_connections_exclude_each_other() {
    let server = RedisServer::start();
    let locks = runtime().block_on(connect(&server.url()));
    let threads: Vec<_> = (0..12)
        .map(|_| {
            let locks = locks.clone();
            thread::spawn(move || {
                let here = runtime();
                here.block_on(async {
                    for _ in 0..20 {
                        lock_once(&locks, "own").await;
                        lock_once(&locks, "all").await;
                    }
                });
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    nothing_is_left_blocking(&server);
    // Eight for runtimes, and that of the manager's thread.
    let connections = server.connections_of_managers();
    assert!(connections <= 8 + 1, "{connections}");
}

fn one_worker() -> Runtime {
    let workers = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    workers.expect("a runtime")
}

#[test]
fn a_manager_that_has_ended_leaves_no_task_in_the_runtime() {
    let server = RedisServer::start();
    let workers = one_worker();
    let alive = || workers.metrics().num_alive_tasks();
    let before = alive();
    for _ in 0..3 {
        let locks = workers.block_on(connect(&server.url()));
        // The connection of the runtime is opened in the background.
        eventually_blocking(HANG, "a task reads", || {
            workers.block_on(lock_once(&locks, "k"));
            alive() > before
        });
        drop(locks);
        eventually_blocking(HANG, "it has ended", || alive() == before);
    }
}

/// Nothing wakes the task of a dead connection while a request that is not polled holds a handle of it.
#[test]
fn a_dead_connection_leaves_no_task_in_the_runtime() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let workers = one_worker();
    let alive = || workers.metrics().num_alive_tasks();
    let before = alive();
    let locks = LockManager::builder().command_timeout(SECOND / 10);
    let locks = workers.block_on(locks.connect(&proxy.url()));
    let locks = locks.expect("it is up");
    // The time-out is so short that a slow machine may take the first connection for dead.
    eventually_blocking(HANG, "a task reads", || {
        workers.block_on(lock_once(&locks, "k"));
        alive() > before
    });
    proxy.black_hole(Scope::Existing);
    let request = begun_in(&workers, locks.acquire("k", options()));
    eventually_blocking(HANG, "the task has ended", || alive() == before);
    drop(request);
    nothing_is_left_blocking(&server);
}

/// Nothing reads the connection of a runtime that is not driven, so the next request notices its end.
#[test]
fn a_connection_that_ended_while_its_runtime_did_not_run_causes_no_error() {
    for is_held in [false, true] {
        let server = RedisServer::start();
        let kill = || server.cli(&["CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES"]);
        let kept = runtime();
        let locks = kept.block_on(connect(&server.url()));
        kept.block_on(connected(&locks, &server, 2));
        if !is_held {
            kill();
        }
        let guard = kept.block_on(locks.acquire_free("k", options()));
        if is_held {
            kill();
        }
        kept.block_on(guard.release_held());
        nothing_is_left_blocking(&server);
    }
}

/// As in a test program, where each test has a runtime of its own.
#[test]
fn runtimes_that_follow_each_other_use_one_connection() {
    let server = RedisServer::start();
    let locks = runtime().block_on(connect(&server.url()));
    for round in 0..30 {
        let here = runtime();
        here.block_on(lock_once(&locks, "k"));
        let unfinished = locks.clone();
        // It is dropped with its runtime while its request is in flight.
        here.spawn(async move { unfinished.acquire(format!("k{round}"), options()).await });
        here.block_on(tokio::task::yield_now());
    }
    runtime().block_on(lock_once(&locks, "k"));
    nothing_is_left_blocking(&server);
    let connections = server.connections_of_managers();
    assert!(connections <= 3, "{connections}");
}
