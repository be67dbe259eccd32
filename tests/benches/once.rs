//! Bodies that run once: a repeat, the first call, and many processes that wait for one result.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use lock_core::{LockManager, LockOptions, OnceOptions};
use redis::aio::MultiplexedConnection;
use tokio::{runtime::Runtime, task::JoinSet};

use crate::{
    cores::{self, Placement, start_server},
    load::{Contender, Keys, Load},
    lockers::{LockCore, Locker, WAIT},
    raw,
    report::{self, Target::AtMost},
    sample::{Samples, median},
    usage::Watch,
    worker,
};

const ROUNDS: usize = 9;
const WINDOW: Duration = Duration::from_millis(400);
/// The value that is kept, in bytes.
const LENGTH: usize = 200;
/// How long a result of a first call is kept: not many at a time are on the server.
const BRIEFLY: Duration = Duration::from_secs(1);
const WAITING: usize = 100;
const KEY: &str = "once";

fn options(keep: Duration) -> OnceOptions {
    OnceOptions::keep(keep).wait(WAIT)
}

fn value() -> String {
    "v".repeat(LENGTH)
}

async fn run_once(manager: &LockManager, key: &str, keep: Duration) -> String {
    let body = async |_| Ok::<_, String>(value());
    let ran = manager.run_once(key, options(keep), body).await;
    ran.expect("a server that is up").expect("it succeeds")
}

/// Gets the result of an earlier run.
#[derive(Clone)]
struct Repeat(LockManager);

impl Locker for Repeat {
    type Held<'a> = String;

    async fn acquire(&self, _: &str) -> String {
        run_once(&self.0, KEY, WAIT * 10).await
    }

    async fn release(&self, _: &str, _: String) {}
}

/// Reads the key of the result, on a connection of the crate `redis`.
#[derive(Clone)]
struct Get(MultiplexedConnection);

impl Locker for Get {
    type Held<'a> = Vec<u8>;

    async fn acquire(&self, _: &str) -> Vec<u8> {
        let mut get = redis::cmd("GET");
        get.arg(format!("__lock_core__:result:lock:{KEY}"));
        let result = get.query_async(&mut self.0.clone()).await;
        result.expect("a running server")
    }

    async fn release(&self, _: &str, result: Vec<u8>) {
        assert!(result.len() > LENGTH, "there is a result");
    }
}

/// Each call is the first one with its key.
#[derive(Clone)]
struct First(LockManager, Arc<AtomicU64>);

impl Locker for First {
    type Held<'a> = String;

    async fn acquire(&self, key: &str) -> String {
        let number = self.1.fetch_add(1, Ordering::Relaxed);
        run_once(&self.0, &format!("{key}:{number}"), BRIEFLY).await
    }

    async fn release(&self, _: &str, _: String) {}
}

/// The same body under a lock alone.
#[derive(Clone)]
struct Run(LockManager, Arc<AtomicU64>);

impl Locker for Run {
    type Held<'a> = String;

    async fn acquire(&self, key: &str) -> String {
        let number = self.1.fetch_add(1, Ordering::Relaxed);
        let key = format!("{key}:{number}");
        let options = LockOptions::default().wait(WAIT);
        let ran = self.0.run(key, options, async |_| value()).await;
        ran.expect("a server that is up")
    }

    async fn release(&self, _: &str, _: String) {}
}

pub(crate) fn run(placements: &[Placement]) {
    for placement in placements {
        cores::place(*placement);
        in_one_process(*placement);
    }
    cores::place(placements[0]);
    for_many_processes();
}

fn in_one_process(placement: Placement) {
    let server = start_server();
    let mut watch = Watch::new(&server);
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let manager = runtime.block_on(LockManager::connect(&server.url()));
    let manager = manager.expect("a running server");
    let get = runtime.block_on(raw::connect(&server.url()));
    let count = Arc::<AtomicU64>::default();
    runtime.block_on(run_once(&manager, KEY, WAIT * 10));
    let contenders = [
        Contender::new("a repeat", &runtime, Repeat(manager.clone())),
        Contender::new("GET", &runtime, Get(get)),
        Contender::new(
            "the first call",
            &runtime,
            First(manager.clone(), count.clone()),
        ),
        Contender::new("run", &runtime, Run(manager, count)),
    ];
    for tasks in [1, 64] {
        let mut all = contenders.each_ref().map(|_| Samples::default());
        for _ in 0..ROUNDS {
            for (contender, samples) in contenders.iter().zip(&mut all) {
                let load = Load {
                    tasks,
                    keys: Keys::Own,
                    window: WINDOW,
                };
                samples.push(contender.run(load, &mut watch));
            }
        }
        let [repeat, get, first, plain] = &all;
        report::title(&format!(
            "a body that runs once, a value of {LENGTH} bytes, {tasks} tasks, {placement}; ratios to GET, and to run"
        ));
        report::header("calls");
        for (contender, samples, floor) in [
            (&contenders[0], repeat, get),
            (&contenders[1], get, get),
            (&contenders[2], first, plain),
            (&contenders[3], plain, plain),
        ] {
            report::line(contender.name, samples, floor);
        }
        if tasks == 1 {
            let repeats = repeat.p50_to(get);
            report::target("p50 of a repeat against GET", repeats, AtMost(1.1));
            let firsts = first.p50_to(plain);
            report::target("p50 of the first call against run", firsts, AtMost(1.15));
        }
    }
}

/// Each manager has a thread, a connection and an entry in the queue, as a process has.
fn for_many_processes() {
    let server = start_server();
    let runtime = Runtime::new().expect("a runtime");
    let holder = runtime.block_on(LockCore::connect(&server.url()));
    let mut process = worker::start("once", &server.url(), &[]);
    let mut watch = Watch::new(&server);
    let (mut lasts, mut cpus) = (Vec::new(), Vec::new());
    for key in ["once:1", "once:2", "once:3"] {
        let held = runtime.block_on(holder.acquire(key));
        process.say(key);
        // All are in the queue, and have checked their places.
        thread::sleep(Duration::from_secs(3));
        let (last, usage) = watch.during(|| {
            let released = Instant::now();
            runtime.block_on(holder.release(key, held));
            assert_eq!(process.line(), "all");
            released.elapsed()
        });
        lasts.push(last.as_secs_f64() * 1e3);
        cpus.push(usage.cpu.as_secs_f64() * 1e3);
    }
    process.say("");
    process.join();
    report::title("100 waiting managers that get one result, one of them runs the body");
    report::note(
        "ms from the release before it to the last of them",
        median(lasts),
    );
    report::note("ms of the server's processor time", median(cpus));
}

pub(crate) fn worker(url: &str) {
    let runtime = Runtime::new().expect("a runtime");
    let connect = || runtime.block_on(LockManager::connect(url));
    let managers: Vec<_> = (0..WAITING).map(|_| connect()).collect();
    worker::send("ready");
    loop {
        let key = worker::received();
        if key.is_empty() {
            break;
        }
        let mut tasks = JoinSet::new();
        for manager in &managers {
            let (manager, key) = (manager.clone(), key.clone());
            let manager = manager.expect("a running server");
            let task = async move { run_once(&manager, &key, WAIT).await };
            tasks.spawn_on(task, runtime.handle());
        }
        runtime.block_on(tasks.join_all());
        worker::send("all");
    }
    std::process::exit(0);
}
