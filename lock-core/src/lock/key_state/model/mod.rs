//! Explores every state that two tasks of this process, one other process and the timer can bring a key into.
//!
//! The transition function is the shipped one. The server is a model of the scripts: a holder with an expiry, a queue, a counter.
//! Requests and replies travel in order on one connection, which may break. A request in flight is then executed before the break,
//! later, or never, and its reply is lost. Time moves to the next moment at which something is due. It moves on a grid of half a
//! second, so each timer is late by up to that. The registry is part of the model: it removes a state that is over with its timer,
//! and begins with a fresh state.

use std::{
    collections::{HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
};

use world::{Scenario, World};

use crate::mode::Mode;

mod canonical;
mod invariants;
mod server;
mod world;

fn hash(world: &World) -> u128 {
    let text = world.canonical();
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, &text).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

/// Visits every state that can be reached, and returns the number of states. Panics with the path to the first state that breaks an
/// invariant.
fn explore(scenario: Scenario, most: usize) -> usize {
    let start = World::start(scenario);
    let mut seen = HashSet::from([hash(&start)]);
    let mut open = VecDeque::from([(start, None)]);
    // Each state, with the index of the state that it was reached from.
    let mut history: Vec<(World, Option<usize>)> = Vec::new();
    while let Some((world, from)) = open.pop_front() {
        let index = history.len();
        history.push((world, from));
        let mut reached = Vec::new();
        if let Err(broken) = history[index].0.next(&mut reached) {
            let mut way = vec![index];
            while let Some(before) = history[way[way.len() - 1]].1 {
                way.push(before);
            }
            let way: Vec<_> = way
                .iter()
                .rev()
                .map(|at| format!("{:?}", history[*at].0))
                .collect();
            panic!("{broken}, after\n\n{}", way.join("\n\n"));
        }
        for next in reached {
            if seen.insert(hash(&next)) {
                open.push_back((next, Some(index)));
            }
        }
        assert!(seen.len() < most, "more than {most} states");
    }
    seen.len()
}

// Several tests, since they run at the same time.

#[test]
fn every_state_of_two_tasks_and_the_timer_keeps_the_invariants() {
    explore_all(&[
        Scenario {
            stalls: 1,
            ..once()
        },
        Scenario { ties: 1, ..once() },
        Scenario {
            shutdowns: 1,
            ..once()
        },
        #[cfg(not(debug_assertions))]
        Scenario {
            faults: 1,
            ..once()
        },
        #[cfg(not(debug_assertions))]
        Scenario {
            faults: 1,
            other_rounds: 1,
            moments: Some(3),
            ..once()
        },
        #[cfg(not(debug_assertions))]
        Scenario {
            rounds: 2,
            ..once()
        },
    ]);
}

#[test]
fn every_state_of_two_tasks_and_another_process_keeps_the_invariants() {
    explore_all(&[
        Scenario {
            other_rounds: 1,
            ..once()
        },
        // Each hand-off waits for the reply that tells whether other processes wait.
        Scenario {
            other_rounds: 1,
            handoffs: 0,
            ..once()
        },
    ]);
}

#[test]
fn every_state_of_two_tasks_that_share_a_key_keeps_the_invariants() {
    let shared = Scenario {
        mode: Mode::Shared,
        moments: Some(3),
        ..once()
    };
    explore_all(&[
        Scenario {
            other_rounds: 1,
            moments: Some(2),
            ..shared
        },
        // Long enough for a share to be let go.
        Scenario {
            moments: Some(5),
            ..shared
        },
        Scenario {
            does_not_wait: true,
            other_rounds: 1,
            moments: Some(1),
            ..shared
        },
        Scenario {
            stalls: 1,
            ..shared
        },
        Scenario { ties: 1, ..shared },
        Scenario {
            shutdowns: 1,
            ..shared
        },
        #[cfg(not(debug_assertions))]
        Scenario {
            faults: 1,
            other_rounds: 1,
            moments: Some(2),
            ..shared
        },
    ]);
}

#[test]
fn every_state_of_two_tasks_with_permits_keeps_the_invariants() {
    for permits in [1, 2] {
        let permits = Scenario {
            mode: Mode::Permits(permits),
            moments: Some(2),
            ..once()
        };
        explore_all(&[
            permits,
            Scenario {
                does_not_wait: true,
                ..permits
            },
            Scenario { ties: 1, ..permits },
            Scenario {
                stalls: 1,
                moments: Some(1),
                ..permits
            },
            #[cfg(not(debug_assertions))]
            Scenario {
                other_rounds: 1,
                ..permits
            },
            #[cfg(not(debug_assertions))]
            Scenario {
                faults: 1,
                ..permits
            },
        ]);
    }
}

fn once() -> Scenario {
    Scenario {
        rounds: 1,
        handoffs: 2,
        ..Scenario::default()
    }
}

fn explore_all(scenarios: &[Scenario]) {
    for scenario in scenarios {
        let started = std::time::Instant::now();
        let states = explore(*scenario, 4_000_000);
        eprintln!("{scenario:?}: {states} states {:?}", started.elapsed());
    }
}
