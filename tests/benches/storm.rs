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
    lockers::{LockCore, Locker, TokioMutex},
    report::{self, Target::AtMost},
    sample::float,
    usage::{Watch, own_memory},
    worker,
};

const WAITERS: u64 = 10_000;
const HELD_FOR: Duration = Duration::from_secs(5);
const KEY: &str = "storm";

pub(crate) fn run() {
    let server = start_server();
    let mut watch = Watch::new(&server);
    let runtime = Runtime::new().expect("a runtime");
    let locker = runtime.block_on(LockCore::connect(&server.url()));
    let held = runtime.block_on(locker.acquire(KEY));
    let mut process = worker::start("storm", &server.url(), &[]);
    process.say("wait");
    let memory: f64 = process.line().parse().expect("bytes");
    let ((), while_waiting) = watch.during(|| thread::sleep(HELD_FOR));
    let (drained, draining) = watch.during(|| {
        runtime.block_on(locker.release(KEY, held));
        process.line()
    });
    let rate: f64 = drained.parse().expect("hand-offs a second");
    process.join();
    let mut process = worker::start("storm-mutex", &server.url(), &[]);
    let mutex: f64 = process.line().parse().expect("bytes");
    process.join();

    report::title(
        "storm, 10,000 tasks of one process wait for a key that another process holds for 5 s",
    );
    let commands = float(while_waiting.commands) / HELD_FOR.as_secs_f64();
    report::target(
        "server commands a second while they wait",
        commands,
        AtMost(20.0),
    );
    report::target("bytes a waiter, its task included", memory, AtMost(1024.0));
    report::note("the same, waiting for a tokio::sync::Mutex", mutex);
    report::note("hand-offs a second when it was released", rate);
    let commands = float(draining.commands) / float(WAITERS);
    report::note("server commands a hand-off then", commands);
}

pub(crate) fn worker(url: &str) {
    let runtime = Runtime::new().expect("a runtime");
    let locker = runtime.block_on(LockCore::connect(url));
    worker::send("ready");
    worker::received();
    let storm = Storm::start(&runtime, &locker);
    worker::send(&storm.memory.to_string());
    worker::send(&storm.drain(&runtime).to_string());
}

/// The same work with a lock inside the process, to measure the cost of the tasks themselves.
pub(crate) fn mutex_worker() {
    let runtime = Runtime::new().expect("a runtime");
    worker::send("ready");
    let mutex = TokioMutex::default();
    let held = runtime.block_on(mutex.acquire(KEY));
    let storm = Storm::start(&runtime, &mutex);
    worker::send(&storm.memory.to_string());
    runtime.block_on(mutex.release(KEY, held));
    storm.drain(&runtime);
}

struct Storm {
    tasks: JoinSet<(Instant, Instant)>,
    /// The memory of each waiter, in bytes.
    memory: f64,
}

impl Storm {
    fn start<L: Locker>(runtime: &Runtime, locker: &L) -> Self {
        let before = own_memory();
        let standing = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..WAITERS {
            let (locker, standing) = (locker.clone(), standing.clone());
            let task = async move {
                standing.fetch_add(1, Ordering::Relaxed);
                let held = locker.acquire(KEY).await;
                let got = Instant::now();
                locker.release(KEY, held).await;
                (got, Instant::now())
            };
            tasks.spawn_on(task, runtime.handle());
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while standing.load(Ordering::Relaxed) < WAITERS {
            assert!(Instant::now() < deadline, "the tasks do not start");
            thread::sleep(Duration::from_millis(10));
        }
        // The last tasks have called acquire; their requests are sent after this pause.
        thread::sleep(Duration::from_millis(200));
        let memory = own_memory().saturating_sub(before);
        Self {
            tasks,
            memory: float(memory) / float(WAITERS),
        }
    }

    /// Waits until every task had the lock; returns hand-offs a second.
    fn drain(self, runtime: &Runtime) -> f64 {
        let times = runtime.block_on(self.tasks.join_all());
        let first = times.iter().map(|(got, _)| *got).min().expect("tasks");
        let last = times.iter().map(|(_, done)| *done).max().expect("tasks");
        float(WAITERS) / (last - first).as_secs_f64()
    }
}
