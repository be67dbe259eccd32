//! Runs the real code of lock-core in many simulated worlds.
//!
//! A world has servers, processes and a network. One seed decides everything in it: which task is polled next, how long a
//! message takes, what breaks and when. Time is virtual. So a failure happens again with the same seed.
//!
//! ```sh
//! cargo test -p lock-tests --test simulation                # some seeds, the same each time
//! SEED=123 cargo test -p lock-tests --test simulation promised -- --nocapture   # one, with its trace
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

/// The number of seeds that each run of the tests tries.
const SEEDS: u64 = 80;

/// After this many failed seeds, the others are left out.
const ENOUGH: usize = 5;

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

#[test]
fn nothing_that_is_promised_is_broken_by_any_of_some_seeds() {
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
    let bad = tried.bad.into_inner().expect("no panic");
    assert!(bad.is_empty(), "{} seeds failed: see above", bad.len());
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 1000..1010 {
        let (first, second) = (simulate(seed, true).trace, simulate(seed, true).trace);
        assert!(first.len() > 100, "seed {seed} has a trace");
        let differs = first.iter().zip(&second).find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(first.len(), second.len(), "seed {seed}");
    }
}

#[expect(
    clippy::print_stdout,
    reason = "the trace of one seed is printed on request"
)]
fn show(seed: u64) {
    let outcome = simulate(seed, true);
    for line in &outcome.trace {
        println!("{line}");
    }
    let offences = &outcome.offences;
    assert!(offences.is_empty(), "seed {seed}: {offences:#?}");
}

/// The results of some seeds.
#[derive(Default)]
struct Tried {
    seeds: AtomicU64,
    grants: AtomicU64,
    refused_writes: AtomicU64,
    bad: Mutex<Vec<u64>>,
}

impl Tried {
    fn all(first: u64, count: u64) -> Self {
        let tried = Self::default();
        let next = AtomicU64::new(first);
        let threads = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= first + count || tried.has_enough() {
                            return;
                        }
                        tried.note(seed, &simulate(seed, false));
                    }
                });
            }
        });
        tried
    }

    fn has_enough(&self) -> bool {
        self.bad.lock().expect("no panic").len() >= ENOUGH
    }

    #[expect(
        clippy::print_stdout,
        reason = "all of them, and not only the first one"
    )]
    fn note(&self, seed: u64, outcome: &Outcome) {
        self.seeds.fetch_add(1, Ordering::Relaxed);
        self.grants.fetch_add(outcome.grants, Ordering::Relaxed);
        self.refused_writes
            .fetch_add(outcome.refused_writes, Ordering::Relaxed);
        if let Some(offence) = outcome.offences.first() {
            println!("seed {seed} (run it with `SEED={seed}`): {offence}");
            self.bad.lock().expect("no panic").push(seed);
        }
    }

    #[expect(clippy::print_stdout, reason = "how fast it is")]
    fn report(&self, took: Duration) {
        let seeds = self.seeds.load(Ordering::Relaxed);
        let a_minute = u128::from(seeds) * 60_000 / took.as_millis().max(1);
        println!(
            "{seeds} seeds, {a_minute} a minute: {} grants, {} writes refused by a store",
            self.grants.load(Ordering::Relaxed),
            self.refused_writes.load(Ordering::Relaxed)
        );
    }
}
