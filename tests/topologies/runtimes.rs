//! Several runtimes in one process, in each mode and on each kind of deployment. There are more runtimes than connections for them, so
//! the replies to some are read by a task of another one.

use std::{
    array,
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread::{self, JoinHandle},
};

use lock_core::{LockGuard, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, Cluster, Deployment, HANG, Mode, Random, RedisServer, ReleaseHeld as _,
    Sentinels, eventually_blocking,
};
use tokio::{
    runtime::{Builder, Runtime},
    task::yield_now,
};

/// Makes a test of each mode on the servers that `start` starts.
macro_rules! in_each_mode_on {
    ($module:ident: $start:expr) => {
        mod $module {
            use super::*;

            #[test]
            fn runtimes_exclude_each_other() {
                all_claims(&Deployment::from($start), Mode::Exclusive);
            }

            #[test]
            fn runtimes_share_keys() {
                all_claims(&Deployment::from($start), Mode::Shared);
            }

            #[test]
            fn runtimes_get_permits() {
                all_claims(&Deployment::from($start), Mode::Permits(2));
            }
        }
    };
}

in_each_mode_on! { one_server: RedisServer::start() }
in_each_mode_on! { sentinels: Sentinels::start() }
in_each_mode_on! { cluster: Cluster::start() }

/// More than there are connections for.
const RUNTIMES: usize = 10;

/// The keys that all runtimes want.
const KEYS: usize = 4;

fn options() -> LockOptions {
    LockOptions::new(HANG * 5).wait(HANG)
}

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

/// A manager, and what its holders have seen.
struct Locks {
    manager: LockManager,
    mode: Mode,
    inside: [AtomicUsize; KEYS],
    tokens: [Mutex<BTreeSet<u64>>; KEYS],
    rounds: AtomicUsize,
}

impl Locks {
    /// A reply may take as long as a test: a request that is forgotten is not sent again.
    fn connect(servers: &Deployment, mode: Mode) -> Arc<Self> {
        let manager = LockManager::builder().command_timeout(HANG);
        let manager = runtime().block_on(manager.connect(&servers.url()));
        Arc::new(Self {
            manager: manager.expect("they are up"),
            mode,
            inside: array::from_fn(|_| AtomicUsize::new(0)),
            tokens: array::from_fn(|_| Mutex::default()),
            rounds: AtomicUsize::new(0),
        })
    }

    async fn acquire(&self, key: &str) -> LockGuard {
        self.manager
            .acquire_free(key, self.mode.of(options()))
            .await
    }

    /// Notes a token of one of the keys that all want. Returns how many may hold the key.
    fn note(&self, key: usize, token: u64) -> usize {
        let mut tokens = self.tokens[key].lock().expect("no panic");
        let is_first = tokens.insert(token);
        let is_last = tokens.last() == Some(&token);
        match self.mode {
            Mode::Exclusive => {
                assert!(is_first && is_last, "{token} after {tokens:?}");
                1
            }
            Mode::Shared => usize::MAX,
            Mode::Permits(permits) => {
                assert!(is_first, "{token} is that of another holder");
                permits.into()
            }
        }
    }

    /// Holds one of the keys that all want. Half of the guards are released, half are dropped.
    async fn hold(&self, key: usize, guard: LockGuard, is_released: bool) {
        let most = self.note(key, guard.lease().fencing_token().into());
        let inside = self.inside[key].fetch_add(1, SeqCst) + 1;
        assert!(inside <= most, "{inside} holders, {:?}", self.mode);
        yield_now().await;
        self.inside[key].fetch_sub(1, SeqCst);
        if is_released {
            guard.release_held().await;
        } else {
            drop(guard);
        }
    }

    /// Takes a new key, and one that all want. A process keeps the share of a key that was just used, and sends nothing for it.
    async fn round(&self) {
        let round = self.rounds.fetch_add(1, SeqCst);
        let guard = self.acquire(&format!("new{round}")).await;
        guard.release_held().await;
        let key = round % KEYS;
        let guard = self.acquire(&format!("all{key}")).await;
        self.hold(key, guard, round.is_multiple_of(3)).await;
    }
}

/// Waits for threads, which must end.
fn have_ended(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        eventually_blocking(HANG * 2, "a thread ends", || thread.is_finished());
        thread.join().expect("no panic");
    }
}

fn nothing_is_left(servers: &Deployment) {
    eventually_blocking(HANG, "no lock is left", || {
        servers.keys("lock:*").is_empty()
    });
}

fn all_claims(servers: &Deployment, mode: Mode) {
    let locks = Locks::connect(servers, mode);
    a_runtime_that_stands_still_keeps_no_reply_from_others(&locks);
    nothing_is_left(servers);
    runtimes_that_end_with_requests_in_flight_leave_nothing(&locks);
    nothing_is_left(servers);
    requests_that_are_dropped_at_any_time_leave_nothing(&locks);
    nothing_is_left(servers);
}

fn a_runtime_that_stands_still_keeps_no_reply_from_others(locks: &Arc<Locks>) {
    let (stopped, is_stopped) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let locker = locks.clone();
    let stands_still = thread::spawn(move || {
        runtime().block_on(async {
            for _ in 0..20 {
                locker.round().await;
            }
            let tasks: Vec<_> = (0..8)
                .map(|number| {
                    let locks = locker.clone();
                    tokio::spawn(async move {
                        let guard = locks.acquire(&format!("stopped{number}")).await;
                        guard.release_held().await;
                    })
                })
                .collect();
            // Their requests leave.
            yield_now().await;
            stopped.send(()).expect("the test waits");
            may_go_on.recv_timeout(HANG * 3).expect("it may go on");
            for task in tasks {
                task.await.expect("no panic");
            }
        });
    });
    is_stopped.recv_timeout(HANG * 2).expect("it is stopped");
    let others = (0..RUNTIMES).map(|_| {
        let locks = locks.clone();
        thread::spawn(move || {
            runtime().block_on(async {
                for _ in 0..20 {
                    locks.round().await;
                }
            });
        })
    });
    have_ended(others.collect());
    go_on.send(()).expect("it is stopped");
    have_ended(vec![stands_still]);
}

/// A runtime that reads one of the connections.
fn reader(locks: &Arc<Locks>) -> Runtime {
    let reads = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let reads = reads.expect("a runtime");
    eventually_blocking(HANG, "its task reads", || {
        reads.block_on(locks.round());
        reads.metrics().num_alive_tasks() > 0
    });
    reads
}

/// Some have only read, for others. Some have had requests of their own.
fn runtimes_that_end_with_requests_in_flight_leave_nothing(locks: &Arc<Locks>) {
    let readers: Vec<_> = (0..8).map(|_| reader(locks)).collect();
    let is_over = Arc::<AtomicBool>::default();
    let others = (0..RUNTIMES).map(|_| {
        let (locks, is_over) = (locks.clone(), is_over.clone());
        thread::spawn(move || {
            runtime().block_on(async {
                while !is_over.load(SeqCst) {
                    locks.round().await;
                }
            });
        })
    });
    let others = others.collect();
    let go_on = || {
        let before = locks.rounds.load(SeqCst);
        eventually_blocking(HANG, "the others go on", || {
            locks.rounds.load(SeqCst) > before + RUNTIMES * 2
        });
    };
    for reader in readers {
        go_on();
        drop(reader);
    }
    for round in 0..20 {
        end_with_requests_in_flight(locks, round);
    }
    go_on();
    is_over.store(true, SeqCst);
    have_ended(others);
}

fn end_with_requests_in_flight(locks: &Arc<Locks>, round: usize) {
    let ends = runtime();
    ends.block_on(async {
        for number in 0..8 {
            let locks = locks.clone();
            let key = if number < KEYS {
                format!("all{number}")
            } else {
                format!("ends{round}:{number}")
            };
            tokio::spawn(async move { locks.acquire(&key).await });
        }
        yield_now().await;
    });
}

fn requests_that_are_dropped_at_any_time_leave_nothing(locks: &Arc<Locks>) {
    let several = || {
        Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
    };
    let runtimes = [runtime(), several().expect("a runtime")];
    let threads = runtimes.into_iter().zip(0..).map(|(here, number)| {
        let locks = locks.clone();
        thread::spawn(move || {
            here.block_on(async {
                let random = Random::new(number);
                let tasks: Vec<_> = (0..16)
                    .map(|task| tokio::spawn(impatient(locks.clone(), random.branch(task))))
                    .collect();
                for task in tasks {
                    task.await.expect("no panic");
                }
            });
        })
    });
    have_ended(threads.collect());
}

/// Drops most of its requests after some turns of its runtime.
async fn impatient(locks: Arc<Locks>, mut random: Random) {
    for _ in 0..40 {
        let key = usize::try_from(random.below(4)).expect("a small number");
        let turns = random.below(12);
        let is_released = random.percent(50);
        let name = format!("all{key}");
        let impatience = async {
            for _ in 0..turns {
                yield_now().await;
            }
        };
        tokio::select! {
            biased;
            guard = locks.acquire(&name) => locks.hold(key, guard, is_released).await,
            () = impatience => {}
        }
    }
}
