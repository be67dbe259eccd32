//! The exploration of every state that a key can reach with two tasks of this process, one other process and the timer.
//!
//! The transition function is the real one, and so is the server's table, which is that of locks in memory. Its replies are
//! reduced to those of a script, which contain less. Requests and replies travel in order on one connection. Time advances
//! to the next moment at which something is due, rounded up to half a second, so each timer is late by up to that. The
//! model also does the registry's work: it removes an empty state together with its timer, and begins with a new one.
//!
//! The following can go wrong, each for a bounded number of times in a scenario:
//!
//! - The connection breaks. A request in flight is then executed before the break, later, or never, and its reply is lost.
//! - A request times out while the connection continues. The request is executed in its order, and its reply is dropped.
//! - The server refuses a request without executing it.
//! - A message is lost, or arrives twice.
//! - The process stops for longer than a ttl, another key of a lease is lost, or the manager shuts down.
//!
//! The following is left to the random operations in memory, the explorer of the scripts, the simulation and the tests with
//! threads:
//!
//! - More than two tasks, a third process, and several servers that vote.
//! - Faults of several kinds in one scenario, and replies that arrive in parts.
//! - `max_hold` and `min_hold`.
//! - A share that other tasks of the process leave while it is granted to a third one.
//! - Evicted companions, and a server that loses its data, or whose clock is set.
//!
//! The tests are ignored in a build with debug assertions, where they take many minutes. `EXPLORE=large` adds the scenarios
//! with millions of states.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
};

use crate::{
    engine::model::world::{Scenario, Task, World},
    mode::Mode,
};

mod canonical;
mod invariants;
mod server;
mod world;

/// The 128-bit FNV-1a hash of the text of a state. The texts themselves are not stored, because there are millions of
/// states.
struct Fingerprint(u128);

impl fmt::Write for Fingerprint {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        }
        Ok(())
    }
}

fn hash(world: &World) -> u128 {
    let mut fingerprint = Fingerprint(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    let written = world.write_canonically(&mut fingerprint);
    written.expect("a hash accepts any text");
    fingerprint.0
}

/// Visits every reachable state, and returns their number. If a state breaks an invariant, panics with the path to it.
fn explore(scenario: Scenario, most: usize) -> usize {
    let start = World::start(scenario);
    let mut seen = HashSet::from([hash(&start)]);
    let mut open = VecDeque::from([(start, None)]);
    // Each state has the index of the state from which it was reached.
    let mut history: Vec<(World, Option<usize>)> = Vec::new();
    let mut have_held = [false; 2];
    while let Some((world, from)) = open.pop_front() {
        let index = history.len();
        for (has_held, task) in have_held.iter_mut().zip(&world.tasks) {
            *has_held |= matches!(task, Task::Holding { .. });
        }
        history.push((world, from));
        let mut reached = Vec::new();
        if let Err(broken) = history[index].0.next(&mut reached) {
            let mut path = vec![index];
            while let Some(before) = history[path[path.len() - 1]].1 {
                path.push(before);
            }
            let path: Vec<_> = path
                .iter()
                .rev()
                .map(|at| format!("{:?}", history[*at].0))
                .collect();
            panic!("{broken}, after\n\n{}", path.join("\n\n"));
        }
        for next in reached {
            if seen.insert(hash(&next)) {
                open.push_back((next, Some(index)));
            }
        }
        assert!(seen.len() < most, "more than {most} states");
    }
    assert_eq!(have_held, [true; 2], "a task never holds the lock");
    seen.len()
}

// The scenarios are divided among several tests, which run in parallel.

#[test]
#[cfg_attr(
    debug_assertions,
    ignore = "takes minutes: explored with optimisations, by `tests/run --all`"
)]
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
        Scenario {
            refusals: 1,
            moments: Some(2),
            ..once()
        },
        Scenario {
            has_two_ttls: true,
            moments: Some(2),
            ..once()
        },
        Scenario {
            unrenewed: 1,
            moments: Some(2),
            ..once()
        },
    ]);
    explore_all(&[
        Scenario {
            faults: 1,
            moments: Some(3),
            ..once()
        },
        Scenario {
            refusals: 1,
            other_rounds: 1,
            moments: Some(2),
            ..once()
        },
        Scenario {
            has_two_ttls: true,
            other_rounds: 1,
            moments: Some(3),
            ..once()
        },
        Scenario {
            rounds: 2,
            moments: Some(2),
            ..once()
        },
    ]);
    explore_if_asked(&[
        Scenario {
            faults: 1,
            ..once()
        },
        Scenario {
            rounds: 2,
            ..once()
        },
    ]);
}

#[test]
#[cfg_attr(
    debug_assertions,
    ignore = "takes minutes: explored with optimisations, by `tests/run --all`"
)]
fn every_state_of_two_tasks_and_another_process_keeps_the_invariants() {
    let with_another_process = Scenario {
        other_rounds: 1,
        moments: Some(3),
        ..once()
    };
    // Each hand-over waits for the reply that says whether other processes wait.
    let without_batches = Scenario {
        handoffs: 0,
        ..with_another_process
    };
    explore_all(&[Scenario {
        moments: Some(2),
        ..with_another_process
    }]);
    explore_all(&[
        Scenario {
            moments: None,
            ..with_another_process
        },
        without_batches,
        Scenario {
            time_outs: 1,
            ..with_another_process
        },
        Scenario {
            odd_messages: 1,
            ..with_another_process
        },
        Scenario {
            faults: 1,
            moments: Some(2),
            ..with_another_process
        },
    ]);
    explore_if_asked(&[
        Scenario {
            moments: None,
            ..without_batches
        },
        Scenario {
            faults: 1,
            ..with_another_process
        },
    ]);
}

#[test]
#[cfg_attr(
    debug_assertions,
    ignore = "takes minutes: explored with optimisations, by `tests/run --all`"
)]
fn every_state_of_two_tasks_that_share_a_key_keeps_the_invariants() {
    let shared = Scenario {
        mode: Mode::Shared,
        moments: Some(3),
        ..once()
    };
    let with_another_process = Scenario {
        other_rounds: 1,
        moments: Some(2),
        ..shared
    };
    explore_all(&[
        Scenario {
            moments: Some(1),
            ..with_another_process
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
        Scenario {
            unrenewed: 1,
            moments: Some(2),
            ..shared
        },
        // An exclusive request of this process arrives.
        Scenario {
            closings: 1,
            moments: Some(2),
            ..shared
        },
    ]);
    explore_all(&with_another_process.with_each_fault());
    explore_all(&[
        Scenario {
            moments: Some(5),
            ..shared
        },
        Scenario {
            does_not_wait: true,
            ..with_another_process
        },
        Scenario {
            faults: 1,
            ..with_another_process
        },
        Scenario {
            has_two_ttls: true,
            ..shared
        },
        Scenario {
            closings: 1,
            ..with_another_process
        },
    ]);
}

#[test]
#[cfg_attr(
    debug_assertions,
    ignore = "takes minutes: explored with optimisations, by `tests/run --all`"
)]
fn every_state_of_two_tasks_with_one_permit_keeps_the_invariants() {
    explore_permits(1);
}

#[test]
#[cfg_attr(
    debug_assertions,
    ignore = "takes minutes: explored with optimisations, by `tests/run --all`"
)]
fn every_state_of_two_tasks_with_two_permits_keeps_the_invariants() {
    explore_permits(2);
}

/// The other process also runs the body, and always succeeds.
#[test]
#[cfg_attr(
    debug_assertions,
    ignore = "takes minutes: explored with optimisations, by `tests/run --all`"
)]
fn every_state_of_two_tasks_that_run_a_body_once_keeps_the_invariants() {
    let alone = Scenario {
        mode: Mode::Once,
        moments: Some(2),
        ..once()
    };
    let with_another_process = Scenario {
        other_rounds: 1,
        ..alone
    };
    explore_all(&[
        alone,
        Scenario {
            moments: Some(1),
            ..with_another_process
        },
        Scenario { stalls: 1, ..alone },
        Scenario {
            shutdowns: 1,
            ..alone
        },
        Scenario {
            unrenewed: 1,
            ..alone
        },
    ]);
    explore_all(&with_another_process.with_each_fault());
    explore_all(&[
        Scenario {
            faults: 1,
            ..with_another_process
        },
        Scenario { rounds: 2, ..alone },
        Scenario {
            has_two_ttls: true,
            ..with_another_process
        },
    ]);
}

fn explore_permits(permits: u16) {
    let permits = Scenario {
        mode: Mode::Permits(permits),
        moments: Some(2),
        ..once()
    };
    let with_another_process = Scenario {
        other_rounds: 1,
        ..permits
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
        Scenario {
            unrenewed: 1,
            ..permits
        },
    ]);
    explore_all(&with_another_process.with_each_fault());
    explore_all(&[
        Scenario {
            faults: 1,
            ..permits
        },
        Scenario {
            has_two_ttls: true,
            ..permits
        },
    ]);
}

impl Scenario {
    /// Returns the scenario itself, and one more for each kind of fault that leaves the connection open.
    fn with_each_fault(self) -> [Self; 4] {
        [
            self,
            Self {
                time_outs: 1,
                ..self
            },
            Self {
                odd_messages: 1,
                ..self
            },
            Self {
                refusals: 1,
                ..self
            },
        ]
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

/// Explores scenarios that take minutes in any build, if `EXPLORE=large` asks for them.
fn explore_if_asked(scenarios: &[Scenario]) {
    if std::env::var("EXPLORE").is_ok_and(|size| size == "large") {
        explore_all(scenarios);
    }
}
