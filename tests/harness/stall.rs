//! A hundred thousand locks of one process, a stopped server, and a connection that is cut.
//!
//! The bench and the soak both use this module: each starts its own program again as the process that holds the locks.

use std::{
    hint,
    io::{self, BufRead, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use lock_core::{LockGuard, LockManager, LockOptions};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::{runtime::Runtime, task::JoinSet};

use crate::{process::Process, server::RedisServer};

const LEASES: usize = 100_000;
const TTL: Duration = Duration::from_secs(10);
/// The first renewals are due after a third of the ttl.
const BEFORE: Duration = Duration::from_secs(4);
const STALL: Duration = Duration::from_secs(3);
/// Longer than the ttl: a lease that is not renewed by then is lost.
const AFTERWARDS: Duration = Duration::from_secs(12);

/// The number of tasks that take locks at a time.
const TASKS: usize = 50;

/// Takes this many locks with a ttl of 10 s, with a new manager.
pub async fn hold_many(url: &str, leases: usize) -> Vec<LockGuard> {
    let locks = LockManager::connect(url).await.expect("a running server");
    let options = LockOptions::new(TTL).wait(Duration::from_secs(120));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (locks, options) = (locks.clone(), options.clone());
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for number in 0..leases / TASKS {
                let guard = locks
                    .acquire(format!("held:{task}:{number}"), options.clone())
                    .await;
                guards.push(guard.expect("a lock within the wait"));
            }
            guards
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

/// Holds the locks, in a process of its own: prints `held`, and after the next line of input the number of lost locks.
pub fn hold_through_a_stall(url: &str) {
    let runtime = Runtime::new().expect("a runtime");
    let guards = runtime.block_on(hold_many(url, LEASES));
    let print = |line: &str| writeln!(io::stdout(), "{line}").expect("a parent that reads");
    print("held");
    io::stdin()
        .lock()
        .read_line(&mut String::new())
        .expect("text");
    let lost = guards.iter().filter(|guard| guard.lease().is_lost());
    print(&lost.count().to_string());
    // The locks need no release, since the server ends now.
}

/// Keeps these cores busy, stops the server for 3 s, and then cuts the connections of the holder. Returns the number of lost locks.
pub fn lost_by_a_stall(
    mut holder: Process,
    server: &RedisServer,
    cores: impl IntoIterator<Item = usize>,
) -> u64 {
    assert_eq!(holder.line(), "held");
    let busy = BusyCores::start(cores);
    thread::sleep(BEFORE);
    server.stop();
    thread::sleep(STALL);
    server.cont();
    server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    thread::sleep(AFTERWARDS);
    drop(busy);
    holder.say("count");
    let lost = holder.line().parse().expect("a number");
    holder.join();
    lost
}

/// Returns the cores that this process may run on.
pub fn own_cores() -> Vec<usize> {
    let ours = sched_getaffinity(None).expect("a Linux system");
    (0..CpuSet::MAX_CPU)
        .filter(|core| ours.is_set(*core))
        .collect()
}

/// Cores that one thread each keeps busy until this is dropped.
#[derive(Debug)]
struct BusyCores(Arc<AtomicBool>);

impl BusyCores {
    fn start(cores: impl IntoIterator<Item = usize>) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        for core in cores {
            let ends = ends.clone();
            thread::spawn(move || {
                let mut one = CpuSet::new();
                one.set(core);
                sched_setaffinity(None, &one).expect("a core that was allowed before");
                while !ends.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        Self(ends)
    }
}

impl Drop for BusyCores {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
