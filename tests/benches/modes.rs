//! Shared locks and permits.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::{runtime::Runtime, task::JoinSet};

use crate::{
    cores::start_server,
    load::{Contender, Keys, Load},
    lockers::{LockCore, Locker, Permits, Shared, TokioRwLock},
    report::{
        self,
        Target::{AtLeast, AtMost},
    },
    sample::{Samples, Times},
    usage::Watch,
    worker,
};

const ROUNDS: usize = 5;
const WINDOW: Duration = Duration::from_secs(1);

const READING_PROCESSES: usize = 8;
const READERS_EACH: usize = 8;
const BODY: Duration = Duration::from_millis(5);
const EXCLUSIVE: usize = 100;

pub(crate) fn run() {
    shared_in_one_process();
    exclusive_among_readers();
    permits();
}

fn shared_in_one_process() {
    let server = start_server();
    let mut watch = Watch::new(&server);
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let own = runtime.block_on(Shared::connect(&server.url()));
    let contenders = [
        Contender::new("lock-core, shared", &runtime, own),
        Contender::new(
            "tokio::sync::RwLock, read",
            &runtime,
            TokioRwLock::default(),
        ),
    ];
    let mut all = contenders.each_ref().map(|_| Samples::default());
    for _ in 0..ROUNDS {
        for (contender, samples) in contenders.iter().zip(&mut all) {
            let load = Load {
                tasks: 16,
                keys: Keys::Together,
                window: WINDOW,
            };
            samples.push(contender.run(load, &mut watch));
        }
    }
    let [own, floor] = &all;
    report::title("shared key, 16 tasks in one process; ratio to readers of tokio::sync::RwLock");
    report::header("holds");
    for (contender, samples) in contenders.iter().zip(&all) {
        report::line(contender.name, samples, floor);
    }
    report::target(
        "rate against its readers",
        own.ratio_to(floor),
        AtLeast(0.3),
    );
}

/// The readers take the key again as soon as they have released it.
fn exclusive_among_readers() {
    let server = start_server();
    let start = |_| worker::start("readers", &server.url(), &[]);
    let mut readers: Vec<_> = (0..READING_PROCESSES).map(start).collect();
    for process in &mut readers {
        process.say("read");
    }
    for process in &mut readers {
        assert_eq!(process.line(), "reading");
    }
    let runtime = Runtime::new().expect("a runtime");
    let writer = runtime.block_on(LockCore::connect(&server.url()));
    let mut waits = Times::default();
    for _ in 0..EXCLUSIVE {
        thread::sleep(BODY * 4);
        let asked = Instant::now();
        runtime.block_on(async {
            let held = writer.acquire("hot").await;
            waits.record(asked.elapsed());
            writer.release("hot", held).await;
        });
    }
    for process in &mut readers {
        process.say("enough");
    }
    for process in readers {
        process.join();
    }
    report::title(
        "an exclusive request among 64 readers in 8 processes that never pause, 5 ms a body",
    );
    let phases = |wait: Duration| wait.div_duration_f64(BODY);
    report::target(
        "its wait in bodies of the readers, median",
        phases(waits.quantile(0.5)),
        AtMost(2.0),
    );
    report::note("99 of 100", phases(waits.quantile(0.99)));
    report::note("the longest", phases(waits.max()));
}

pub(crate) fn reading(url: &str) {
    let runtime = Runtime::new().expect("a runtime");
    let locker = runtime.block_on(Shared::connect(url));
    worker::tell("ready");
    worker::told();
    let mut tasks = JoinSet::new();
    for _ in 0..READERS_EACH {
        let locker = locker.clone();
        tasks.spawn_on(
            async move {
                loop {
                    let held = locker.acquire("hot").await;
                    tokio::time::sleep(BODY).await;
                    locker.release("hot", held).await;
                }
            },
            runtime.handle(),
        );
    }
    worker::tell("reading");
    worker::told();
    std::process::exit(0);
}

fn permits() {
    let server = start_server();
    let mut watch = Watch::new(&server);
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let own = runtime.block_on(Permits::connect(&server.url()));
    let own = Contender::new("lock-core, 4 permits", &runtime, own);
    let mut samples = Samples::default();
    for _ in 0..ROUNDS {
        let load = Load {
            tasks: 64,
            keys: Keys::Together,
            window: WINDOW,
        };
        samples.push(own.run(load, &mut watch));
    }
    report::title("4 permits, 64 tasks in one process");
    report::header("holds");
    report::line(own.name, &samples, &samples);
    report::note("most to least favoured task", samples.favour());
}
