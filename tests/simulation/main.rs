//! Runs the real code of lock-core in many simulated worlds.
//!
//! A world has servers, processes, a network and virtual time. A seed determines everything in it: which task is polled next, how
//! long a message takes, what breaks and when. So a failure can be repeated.
//!
//! ```sh
//! cargo test -p lock-tests --test simulation                # a few seeds, the same each time
//! SEED=123 cargo test -p lock-tests --test simulation promised -- --nocapture   # one seed, with its trace
//! SEEDS=10000 FIRST=500 cargo test --profile simulation -p lock-tests --test simulation promised -- --nocapture
//! ```
//!
//! - `world`, `scheduler`, `network`, `chance`: the environment of lock-core;
//! - `model`: the servers; `conformance` compares them with a real one;
//! - `plan`, `faults`, `workload`: the events of a world;
//! - `oracle`: the checks, with `phases` for the order of readers and writers, and `locks` for the data of a server;
//! - `run`: one seed.

mod chance;
mod conformance;
mod explore;
mod faults;
mod locks;
mod model;
mod network;
mod oracle;
mod phases;
mod plan;
mod run;
mod scheduler;
mod workload;
mod world;

use std::{
    env,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use run::{Outcome, simulate};
use world::lock;

/// The number of seeds in each run of the tests.
const SEEDS: u64 = 80;

/// The number of failed seeds after which the others are skipped.
const ENOUGH: usize = 5;

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

#[test]
fn no_seed_breaks_what_is_promised() {
    if let Some(seed) = number("SEED") {
        return show(seed);
    }
    let (first, count) = (
        number("FIRST").unwrap_or(0),
        number("SEEDS").unwrap_or(SEEDS),
    );
    let start = Instant::now();
    let tried = Tried::all(first, count);
    tried.report(start.elapsed());
    let bad = tried.bad.len();
    assert_eq!(bad, 0, "seeds failed: see above");
    let Tried { seeds, grants, .. } = tried;
    assert!(
        grants > 10 * seeds,
        "{seeds} worlds had only {grants} grants"
    );
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 1000..1010 {
        let (first, second) = (simulate(seed, true).trace, simulate(seed, true).trace);
        assert!(first.len() > 100, "seed {seed} has no trace");
        let differs = first.iter().zip(&second).find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(first.len(), second.len(), "seed {seed}");
    }
}

#[expect(clippy::print_stdout, reason = "prints the trace of a seed on request")]
fn show(seed: u64) {
    let outcome = simulate(seed, true);
    for line in &outcome.trace {
        println!("{line}");
    }
    let violations = &outcome.violations;
    assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
}

/// The results of some seeds.
#[derive(Default)]
struct Tried {
    seeds: u64,
    grants: u64,
    bad: Vec<u64>,
}

impl Tried {
    fn all(first: u64, count: u64) -> Self {
        let tried = Mutex::new(Self::default());
        let next = AtomicU64::new(first);
        let threads = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= first + count || lock(&tried).bad.len() >= ENOUGH {
                            return;
                        }
                        let outcome = simulate(seed, false);
                        lock(&tried).note(seed, &outcome);
                    }
                });
            }
        });
        tried.into_inner().expect("no panic")
    }

    #[expect(clippy::print_stdout, reason = "prints every failed seed")]
    fn note(&mut self, seed: u64, outcome: &Outcome) {
        self.seeds += 1;
        self.grants += outcome.grants;
        if let Some(violation) = outcome.violations.first() {
            println!("seed {seed} (run it with `SEED={seed}`): {violation}");
            self.bad.push(seed);
        }
    }

    #[expect(clippy::print_stdout, reason = "prints the speed")]
    fn report(&self, took: Duration) {
        let Self { seeds, grants, .. } = self;
        let per_minute = u128::from(*seeds) * 60_000 / took.as_millis().max(1);
        println!("{seeds} seeds, {per_minute} per minute, {grants} grants");
    }
}
