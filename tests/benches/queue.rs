//! A thousand managers that wait for one key. Like a process, each has a thread, a connection and an entry in the queue.

use std::{thread, time::Duration};

use tokio::{runtime::Runtime, task::JoinSet};

use crate::{
    cores::start_server,
    lockers::{LockCore, Locker},
    report::{self, Target::AtMost},
    sample::float,
    usage::Watch,
    worker,
};

const WAITING: usize = 1_000;
const WATCHED_FOR: Duration = Duration::from_secs(10);

pub(crate) fn run() {
    let server = start_server();
    let mut watch = Watch::new(&server);
    let mut process = worker::start("queue", &server.url(), &[]);
    process.say("wait");
    assert_eq!(process.line(), "waiting");
    // Until the first checks are over.
    thread::sleep(Duration::from_secs(2));
    let ((), usage) = watch.during(|| thread::sleep(WATCHED_FOR));
    process.say("enough");
    process.join();

    report::title("queue, 1,000 waiting managers on one key with a ttl of 10 s, watched for 10 s");
    let cpu = usage.cpu.as_secs_f64() / WATCHED_FOR.as_secs_f64();
    report::target(
        "per cent of a core for the server",
        cpu * 100.0,
        AtMost(5.0),
    );
    let checks = float(usage.scripts) / WATCHED_FOR.as_secs_f64();
    report::note("checks per second", checks);
}

pub(crate) fn worker(url: &str) {
    let runtime = Runtime::new().expect("a runtime");
    let holder = runtime.block_on(LockCore::connect(url));
    worker::send("ready");
    worker::received();
    let _guard = runtime.block_on(holder.acquire("queue"));
    let mut tasks = JoinSet::new();
    for _ in 0..WAITING {
        let locker = runtime.block_on(LockCore::connect(url));
        tasks.spawn_on(
            async move {
                let _never = locker.acquire("queue").await;
            },
            runtime.handle(),
        );
    }
    worker::send("waiting");
    worker::received();
    std::process::exit(0);
}
