//! Ten thousand tasks of one process that wait for one key.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{runtime::Runtime, task::JoinSet};

use crate::{
    cores::start_server,
    lockers::{LockCore, Locker},
    report::{self, Target::AtMost},
    sample::float,
    usage::{Watch, own_memory},
    worker,
};

const WAITERS: u64 = 10_000;
const WATCHED_FOR: Duration = Duration::from_secs(5);
const KEY: &str = "storm";

pub(crate) fn run() {
    let server = start_server();
    let mut watch = Watch::new(&server);
    let runtime = Runtime::new().expect("a runtime");
    let holder = runtime.block_on(LockCore::connect(&server.url()));
    let _held = runtime.block_on(holder.acquire(KEY));
    let mut process = worker::start("storm", &server.url(), &[]);
    process.say("wait");
    let memory: f64 = process.line().parse().expect("bytes");
    let ((), usage) = watch.during(|| thread::sleep(WATCHED_FOR));
    process.say("enough");
    process.join();

    report::title("storm, 10,000 tasks of one process wait for a key, watched for 5 s");
    let commands = float(usage.commands) / WATCHED_FOR.as_secs_f64();
    report::target("server commands per second", commands, AtMost(20.0));
    report::target(
        "bytes per waiter, including its task",
        memory,
        AtMost(1024.0),
    );
}

pub(crate) fn worker(url: &str) {
    let runtime = Runtime::new().expect("a runtime");
    let locker = runtime.block_on(LockCore::connect(url));
    worker::send("ready");
    worker::received();
    let before = own_memory();
    let started = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..WAITERS {
        let (locker, started) = (locker.clone(), started.clone());
        let task = async move {
            started.fetch_add(1, Ordering::Relaxed);
            let _never = locker.acquire(KEY).await;
        };
        tasks.spawn_on(task, runtime.handle());
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while started.load(Ordering::Relaxed) < WAITERS {
        assert!(Instant::now() < deadline, "the tasks do not start");
        thread::sleep(Duration::from_millis(10));
    }
    // The last tasks have called acquire; their requests are sent within this pause.
    thread::sleep(Duration::from_millis(200));
    let memory = own_memory().saturating_sub(before);
    worker::send(&(float(memory) / float(WAITERS)).to_string());
    worker::received();
    std::process::exit(0);
}
