//! The faults, their order and their lengths, which depend on the topology and the seed alone.
//!
//! Unlike those of the simulation, which are drawn at once, the faults come in endless rounds. Each is healed before the next,
//! and the topology decides which kinds there are.

use std::time::Duration;

use lock_tests::{Direction, Random, Scope};

use crate::{
    fault::{Cause, Clients, Data, Fault, Paused},
    topology::{Sides, Topology},
};

/// Faults at the same time, and the calm after them.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) faults: Vec<Fault>,
    pub(crate) calm: Duration,
}

/// The number of contenders, whose places are numbered from zero.
pub(crate) const CONTENDERS: u64 = 8;

/// The number of contenders at the first places that are never killed, so that some processes run for long.
pub(crate) const SPARED: u64 = 2;

/// Endless rounds.
#[derive(Debug)]
pub(crate) struct Plan {
    topology: Topology,
    longest_ttl: Duration,
    random: Random,
    rounds: u64,
}

impl Plan {
    pub(crate) fn new(topology: Topology, longest_ttl: Duration, seed: u64) -> Self {
        Self {
            topology,
            longest_ttl,
            random: Random::new(seed).branch(1),
            rounds: 0,
        }
    }

    /// Returns the time without faults before the end, long enough to see each key granted again.
    pub(crate) fn last_calm(&self) -> Duration {
        self.longest_ttl + Duration::from_millis(2_600)
    }

    /// Draws a fault of the servers or the network.
    fn main_fault(&mut self) -> Fault {
        let draw: fn(&mut Random, u64) -> Fault = match self.topology {
            Topology::One | Topology::Resp2 | Topology::WithoutScripts => on_a_single_server,
            Topology::Redlock => on_one_of_several,
            Topology::Sentinel => on_sentinels,
            Topology::Cluster => on_a_cluster,
        };
        let node = self.random.below(self.topology.nodes());
        draw(&mut self.random, node)
    }

    fn contender_fault(&mut self) -> Fault {
        let random = &mut self.random;
        let place = SPARED + random.below(CONTENDERS - SPARED);
        let count = 1 + random.below(3);
        if random.percent(50) {
            return Fault::KillContenders { place, count };
        }
        let place = random.below(CONTENDERS);
        // Longer than the ttls of most keys.
        let span = random.weighted(&[(2, 700), (3, 2_300), (2, 5_500)]);
        let span = Duration::from_millis(span);
        Fault::StopContenders { place, count, span }
    }

    fn calm_after(&mut self, faults: &[Fault]) -> Duration {
        let lost = |fault: &Fault| matches!(fault, Fault::RestartServer { .. });
        if faults.iter().any(lost) && self.topology == Topology::Redlock {
            // No other server may be hit until this one has a vote again.
            return self.topology.quarantine() + Duration::from_secs(1);
        }
        // Every fifth calm is long enough to see each key granted.
        if self.rounds.is_multiple_of(5) {
            return self.last_calm();
        }
        self.random.millis(2_500, 5_000)
    }
}

impl Iterator for Plan {
    type Item = Round;

    fn next(&mut self) -> Option<Round> {
        self.rounds += 1;
        let mut faults = Vec::new();
        if !self.random.percent(25) {
            faults.push(self.main_fault());
        }
        if faults.is_empty() || self.random.percent(40) {
            faults.push(self.contender_fault());
        }
        let calm = self.calm_after(&faults);
        Some(Round { faults, calm })
    }
}

type Draw = fn(&mut Random, u64) -> Fault;

fn on_a_single_server(random: &mut Random, node: u64) -> Fault {
    let draw = random.weighted::<Draw>(&[
        (30, of_the_network),
        (25, of_the_server),
        (8, |random, node| Fault::RestartServer {
            node,
            data: Data::Kept,
            span: random.millis(50, 1_500),
        }),
        (6, |random, node| Fault::RestartServer {
            node,
            data: Data::Lost,
            span: random.millis(50, 1_500),
        }),
        (6, |random, node| Fault::StopServer {
            node,
            span: random.millis(200, 3_000),
        }),
        (3, |_, node| Fault::FlushAll { node }),
        (3, |random, _| Fault::DeleteKey { key: random.next() }),
        (3, |random, _| Fault::StealKey { key: random.next() }),
    ]);
    draw(random, node)
}

fn on_one_of_several(random: &mut Random, node: u64) -> Fault {
    let draw = random.weighted::<Draw>(&[
        (30, of_the_network),
        (25, of_the_server),
        (12, |random, node| Fault::RestartServer {
            node,
            data: Data::Lost,
            span: random.millis(50, 1_500),
        }),
        (10, |random, node| Fault::StopServer {
            node,
            span: random.millis(200, 4_000),
        }),
    ]);
    draw(random, node)
}

/// Sentinels take a server for dead after half a second of silence, so a fault without a fail-over has to be shorter.
fn on_sentinels(random: &mut Random, node: u64) -> Fault {
    let draw = random.weighted::<Draw>(&[
        (25, of_the_server_for_a_moment),
        (12, |random, _| fail_over(random, Cause::Kill)),
        (6, |random, _| fail_over(random, Cause::Stop)),
        (6, |random, _| fail_over(random, Cause::Command)),
        (3, |_, node| Fault::FlushAll { node }),
        (3, |random, _| Fault::StealKey { key: random.next() }),
    ]);
    draw(random, node)
}

fn on_a_cluster(random: &mut Random, node: u64) -> Fault {
    let draw = random.weighted::<Draw>(&[
        (25, of_the_server_for_a_moment),
        (10, |random, _| fail_over(random, Cause::Kill)),
        (4, |random, _| fail_over(random, Cause::Stop)),
        (6, |random, _| fail_over(random, Cause::Command)),
        (15, |random, _| Fault::MoveSlot {
            key: random.next(),
            target: random.next(),
        }),
        (3, |_, node| Fault::FlushAll { node }),
        (3, |random, _| Fault::StealKey { key: random.next() }),
    ]);
    draw(random, node)
}

fn fail_over(random: &mut Random, by: Cause) -> Fault {
    let key = random.next();
    Fault::FailOver { key, by }
}

fn direction(random: &mut Random) -> Direction {
    if random.percent(50) {
        Direction::Requests
    } else {
        Direction::Replies
    }
}

fn sides(random: &mut Random) -> Sides {
    random.weighted(&[(1, Sides::Even), (1, Sides::Odd), (2, Sides::Both)])
}

fn of_the_network(random: &mut Random, node: u64) -> Fault {
    let draw = random.weighted::<Draw>(&[
        (5, |random, node| Fault::Delay {
            node,
            sides: sides(random),
            direction: direction(random),
            delay: random.millis(20, 500),
        }),
        (5, |random, node| Fault::LoseFrame {
            node,
            sides: sides(random),
            direction: direction(random),
            nth: 1 + random.below(200),
        }),
        (2, |random, node| Fault::BlackHole {
            node,
            sides: sides(random),
            scope: Scope::Existing,
            span: random.millis(300, 4_000),
        }),
        (2, |random, node| Fault::BlackHole {
            node,
            sides: sides(random),
            scope: Scope::All,
            span: random.millis(300, 3_000),
        }),
        (2, |random, node| Fault::Reset {
            node,
            sides: sides(random),
        }),
        (2, |random, node| Fault::HalfClose {
            node,
            sides: sides(random),
            direction: direction(random),
        }),
    ]);
    draw(random, node)
}

fn of_the_server(random: &mut Random, node: u64) -> Fault {
    of_the_server_within(random, node, 2_000)
}

fn of_the_server_for_a_moment(random: &mut Random, node: u64) -> Fault {
    of_the_server_within(random, node, 300)
}

fn of_the_server_within(random: &mut Random, node: u64, most_ms: u64) -> Fault {
    let span = random.millis(100, most_ms);
    let what = if random.percent(50) {
        Paused::All
    } else {
        Paused::Writes
    };
    let clients = if random.percent(50) {
        Clients::All
    } else {
        Clients::Subscribed
    };
    random.weighted(&[
        (2, Fault::FlushScripts { node }),
        (3, Fault::KillClients { node, clients }),
        (
            2,
            Fault::OutOfMemory {
                node,
                span: 4 * span,
            },
        ),
        (2, Fault::Pause { node, what, span }),
        (2, Fault::Sleep { node, span }),
    ])
}
