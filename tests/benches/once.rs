//! Bodies that run once: a repeat, and the first call.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lock_core::{LockManager, LockOptions, OnceOptions};
use redis::aio::MultiplexedConnection;
use tokio::runtime::Runtime;

use crate::{
    cores::{self, Placement, start_server},
    load::{Contender, Keys, Load, take_turns},
    lockers::{Locker, WAIT},
    raw,
    report::{self, Target::AtMost},
    usage::Watch,
};

const ROUNDS: usize = 9;
const WINDOW: Duration = Duration::from_millis(400);
/// The length of the stored value.
const LENGTH: usize = 200;
/// How long the result of a first call is stored, so that the server never has many of them.
const BRIEFLY: Duration = Duration::from_secs(1);
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
    ran.expect("a running server").expect("the body succeeds")
}

/// Returns the stored result of an earlier run.
#[derive(Clone)]
struct Repeat(LockManager);

impl Locker for Repeat {
    type Held<'a> = String;

    async fn acquire(&self, _: &str) -> String {
        run_once(&self.0, KEY, WAIT * 10).await
    }

    async fn release(&self, _: &str, _: String) {}
}

/// Reads the key of the result on a connection of the `redis` crate.
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
        assert!(result.len() > LENGTH, "the result is stored");
    }
}

/// Every call is the first one with its key.
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

/// Runs the body under a lock, without storing its result.
#[derive(Clone)]
struct Run(LockManager, Arc<AtomicU64>);

impl Locker for Run {
    type Held<'a> = String;

    async fn acquire(&self, key: &str) -> String {
        let number = self.1.fetch_add(1, Ordering::Relaxed);
        let key = format!("{key}:{number}");
        let options = LockOptions::default().wait(WAIT);
        let ran = self.0.run(key, options, async |_| value()).await;
        ran.expect("a running server")
    }

    async fn release(&self, _: &str, _: String) {}
}

pub(crate) fn run(placements: &[Placement]) {
    for placement in placements {
        cores::place(*placement);
        in_one_process(*placement);
    }
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
        let load = Load {
            tasks,
            keys: Keys::Own,
            window: WINDOW,
        };
        let all = take_turns(&contenders, load, ROUNDS, &mut watch);
        let [repeat, get, first, plain] = &all;
        report::title(&format!(
            "a body that runs once, with a value of {LENGTH} bytes, {tasks} tasks, {placement}; ratios to GET, and to run"
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
