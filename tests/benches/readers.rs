//! One writer among readers of several processes that never pause, with each crate that has both.

use std::{
    future::Future,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use lock_tests::{Process, RedisServer};
use tokio::{runtime::Runtime, task::JoinSet, time::sleep};

use crate::{
    cores::start_server,
    load::Window,
    plot::{Panel, Plot},
    report::{self, Target::AtMost},
    rw_locks::{DistributedLockRedis, LockCore, RLock, RwLock},
    sample::{Work, float, median},
    worker,
};

const ROUNDS: usize = 3;
const WINDOW: Duration = Duration::from_secs(8);
/// Long enough for every process to read its line and start.
const DELAY: Duration = Duration::from_millis(200);

const PROCESSES: usize = 8;
const READERS_EACH: usize = 8;
/// How long each reader holds the lock.
const BODY: Duration = Duration::from_millis(5);
/// The pause between two requests of the writer.
const PAUSE: Duration = Duration::from_millis(20);
/// The time after which the writer gives up a request.
pub(crate) const BOUND: Duration = Duration::from_secs(2);

/// The result of one crate.
pub(crate) struct Outcome {
    pub(crate) name: &'static str,
    /// The waits of all requests of the writer, sorted, with those that it gave up at the end.
    waits: Vec<Option<Duration>>,
    rates: Vec<f64>,
}

impl Outcome {
    pub(crate) fn requests(&self) -> usize {
        self.waits.len()
    }

    pub(crate) fn granted(&self) -> usize {
        self.waits.iter().flatten().count()
    }

    /// Returns the wait that this share of all requests did not exceed; `None` if it is longer than the bound.
    pub(crate) fn quantile(&self, percent: usize) -> Option<Duration> {
        let place = (self.waits.len() * percent).div_ceil(100);
        self.waits[place.saturating_sub(1)]
    }

    /// Returns how often per second the readers held the lock, all together.
    pub(crate) fn reads(&self) -> f64 {
        median(self.rates.clone())
    }
}

pub(crate) fn run() -> Plot {
    let server = start_server();
    let mut teams = [
        Team::start::<LockCore>("lock-core", &server),
        Team::start::<RLock>("rlock", &server),
        Team::start::<DistributedLockRedis>("distributed-lock-redis", &server),
    ];
    for _ in 0..ROUNDS {
        for team in &mut teams {
            team.run();
        }
    }
    report::title(
        "an exclusive request among 64 readers in 8 processes that never pause, with bodies of 5 ms; it waits for at most 2 s",
    );
    report::waits_header();
    let outcomes = teams.map(Team::end);
    for outcome in &outcomes {
        report::waits(outcome);
    }
    let bodies = |percent| {
        let wait = outcomes[0].quantile(percent);
        wait.map_or(f64::INFINITY, |wait| wait.div_duration_f64(BODY))
    };
    report::target(
        "median wait of lock-core, in bodies of the readers",
        bodies(50),
        AtMost(2.0),
    );
    report::note("99th percentile of the wait", bodies(99));
    report::note("longest wait", bodies(100));
    let waits = |outcome: &Outcome| {
        let wait = |percent| outcome.quantile(percent).unwrap_or(BOUND);
        [50, 99, 100].map(|percent| wait(percent).as_secs_f64() * 1e3)
    };
    Plot {
        contenders: outcomes.each_ref().map(|outcome| outcome.name).into(),
        panels: [
            Panel {
                title: "wait of the writer in ms; 2,000 if it gave up",
                labels: ["median", "99th percentile", "longest"]
                    .map(str::to_owned)
                    .into(),
                values: outcomes.iter().map(|it| waits(it).into()).collect(),
            },
            Panel {
                title: "reads per second",
                labels: vec![String::new()],
                values: outcomes.iter().map(|it| vec![it.reads()]).collect(),
            },
        ],
    }
}

/// The reader processes of one crate, and its writer.
struct Team {
    readers: Vec<Process>,
    /// Makes requests, all of which end within the window.
    write: Box<dyn FnMut(Window) -> Vec<Option<Duration>>>,
    outcome: Outcome,
}

impl Team {
    fn start<L: RwLock>(name: &'static str, server: &RedisServer) -> Self {
        let start = |_| worker::start("readers", &server.url(), &[name]);
        let readers = (0..PROCESSES).map(start).collect();
        let runtime = Runtime::new().expect("a runtime");
        let lock = runtime.block_on(L::connect(&server.url()));
        let write = move |window| runtime.block_on(write(&lock, window));
        Self {
            readers,
            write: Box::new(write),
            outcome: Outcome {
                name,
                waits: Vec::new(),
                rates: Vec::new(),
            },
        }
    }

    fn run(&mut self) {
        let (line, start) = worker::window_line(DELAY, WINDOW);
        for process in &mut self.readers {
            process.say(&line);
        }
        thread::sleep(start.saturating_duration_since(Instant::now()) + BODY);
        let end = start + WINDOW;
        self.outcome
            .waits
            .extend((self.write)(Window { start, end }));
        let reads = self.readers.iter_mut().map(|process| {
            let (work, _cpu) = worker::to_work(&process.line());
            work.count
        });
        let rate = float(reads.sum()) / WINDOW.as_secs_f64();
        self.outcome.rates.push(rate);
    }

    fn end(mut self) -> Outcome {
        for process in &mut self.readers {
            process.say("");
        }
        for process in self.readers {
            process.join();
        }
        self.outcome
            .waits
            .sort_by_key(|wait| wait.unwrap_or(Duration::MAX));
        self.outcome
    }
}

async fn write(lock: &impl RwLock, window: Window) -> Vec<Option<Duration>> {
    let mut waits = Vec::new();
    while Instant::now() + BOUND < window.end {
        waits.push(lock.write(BOUND).await);
        sleep(PAUSE).await;
    }
    waits
}

/// Runs a process of readers that use the `name` crate.
pub(crate) fn worker(url: &str, name: &str) {
    let runtime = Runtime::new().expect("a runtime");
    match name {
        "lock-core" => read(&runtime, LockCore::connect(url)),
        "rlock" => read(&runtime, RLock::connect(url)),
        "distributed-lock-redis" => read(&runtime, DistributedLockRedis::connect(url)),
        _ => panic!("unknown crate: {name}"),
    }
}

fn read<L: RwLock>(runtime: &Runtime, connecting: impl Future<Output = L>) {
    let lock = Arc::new(runtime.block_on(connecting));
    worker::in_windows(runtime, async |window| {
        let mut readers = JoinSet::new();
        for _ in 0..READERS_EACH {
            readers.spawn(reader(lock.clone(), window));
        }
        let count = readers.join_all().await.into_iter().sum();
        Work {
            count,
            taken: count,
            ..Work::default()
        }
    });
}

/// Acquires the lock again as soon as it has released it.
async fn reader(lock: Arc<impl RwLock>, window: Window) -> u64 {
    let mut count = 0;
    while Instant::now() < window.end {
        let granted = lock.read(BODY).await;
        if granted && Instant::now() >= window.start {
            count += 1;
        }
    }
    count
}
