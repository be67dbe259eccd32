//! The plan of a seed's world: the number of servers and processes, their properties, what breaks and when.
//!
//! The soak has another plan, with faults of real servers and processes: among them are fail-overs and moving slots, which
//! the model does not have. The faults here come at points of virtual time, and are all drawn before the world begins.

use std::time::Duration;

use crate::{
    chance::Chance,
    model::Dialect,
    network::{Held, MILLI, Nanos, SECOND},
};

/// Everything that the seed decides before the world begins.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) servers: Vec<ServerPlan>,
    pub(crate) latency: (Nanos, Nanos),
    pub(crate) processes: Vec<ProcessPlan>,
    pub(crate) keys: Vec<String>,
    /// Decides, together with a key's name, the mode in which the key is taken.
    seed_of_modes: u64,
    seed_of_permits: usize,
    /// The number of attempts for a shared key, of a thousand, that share it.
    pub(crate) shares: u64,
    /// Whether users begin again at once, so that there are readers all the time.
    pub(crate) hurries: bool,
    /// The longest ttl of all managers.
    pub(crate) longest_ttl: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) faults: Vec<(Nanos, Fault)>,
    /// From this time on nothing is broken, and no user begins an operation.
    pub(crate) healed_at: Nanos,
}

/// The mode in which a key is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyMode {
    Exclusive,
    /// Shared by most, and exclusively by some.
    Shared,
    /// With permits; each attempt chooses its own number of permits, up to a bound.
    Permits,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerPlan {
    pub(crate) dialect: Dialect,
    pub(crate) ahead_us: i64,
    pub(crate) rate_ppm: i64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessPlan {
    pub(crate) managers: usize,
    /// The number of users' tasks for each manager.
    pub(crate) tasks: usize,
    pub(crate) booted_before: Nanos,
    pub(crate) rate_ppm: i64,
    pub(crate) ahead_us: i64,
    /// The number of operations, of a thousand, that force a release.
    pub(crate) forces: u64,
}

/// Processes and servers by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Reset {
        host: usize,
        process: Option<usize>,
    },
    ResetForTheClient {
        host: usize,
        process: Option<usize>,
    },
    HalfOpen {
        host: usize,
        process: Option<usize>,
    },
    NoReplies {
        host: usize,
        process: Option<usize>,
    },
    NoRequests {
        host: usize,
        process: Option<usize>,
    },
    /// Nothing arrives for a while, in one direction or in both, and then all of it.
    Hold {
        host: usize,
        process: Option<usize>,
        held: Held,
        span: Nanos,
    },
    /// No process can connect, and nothing arrives on existing connections any more.
    BlackHole {
        host: usize,
        process: Option<usize>,
        span: Nanos,
    },
    Slow {
        host: usize,
        process: Option<usize>,
        more: Nanos,
        span: Nanos,
    },
    Stall {
        host: usize,
        span: Nanos,
    },
    /// A server comes back with its data.
    Restart {
        host: usize,
        span: Nanos,
        sends_reset: bool,
    },
    /// A server comes back without its data.
    Amnesia {
        host: usize,
        span: Nanos,
        sends_reset: bool,
    },
    Flush {
        host: usize,
    },
    Step {
        host: usize,
        by_us: i64,
    },
    Delete {
        host: usize,
        key: usize,
    },
    /// A lock of another library: for this long, or until it is removed by hand after a while.
    Foreign {
        host: usize,
        key: usize,
        span: Nanos,
        expires: bool,
    },
    Stop {
        process: usize,
        span: Nanos,
    },
    Block {
        process: usize,
        span: Nanos,
    },
    Kill {
        process: usize,
    },
}

/// The faults that are allowed besides an unreliable network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    /// All promises hold.
    Kept,
    /// Exclusion is not promised: data are lost, or keys are deleted by hand.
    DataLost,
    /// Exclusion is not promised either: a server's clock is set.
    ClockSet,
}

impl Plan {
    pub(crate) fn of(chance: &mut Chance) -> Self {
        let servers = chance.pick(&[1, 1, 1, 1, 3, 3, 5]);
        let promise = chance.pick(&[
            Promise::Kept,
            Promise::Kept,
            Promise::DataLost,
            Promise::ClockSet,
        ]);
        let near = (20_000, 300_000);
        let latency = chance.pick(&[near, near, (100_000, 2 * MILLI), (5 * MILLI, 20 * MILLI)]);
        let longest_ttl = Duration::from_millis(chance.pick(&[300, 500, 1000, 2000, 3000, 20_000]));
        let keys = (0..chance.between(1, 3))
            .map(|key| format!("k{key}"))
            .collect();
        let processes = (0..chance.between(2, 4))
            .map(|_| ProcessPlan::of(chance, servers, promise))
            .collect();
        let mut plan = Self {
            servers: ServerPlan::all(chance, servers),
            latency,
            processes,
            keys,
            longest_ttl,
            command_timeout: Duration::from_millis(chance.pick(&[200, 500, 1000])),
            faults: Vec::new(),
            healed_at: chance.between(3, 12) * SECOND,
            seed_of_modes: 0,
            seed_of_permits: 0,
            shares: 0,
            hurries: false,
        };
        plan.add_faults(chance, promise);
        plan.seed_of_modes = chance.below(3);
        plan.seed_of_permits = chance.index(3);
        plan.shares = chance.pick(&[600, 600, 900]);
        if plan.is_calm() && chance.permille(500) {
            plan.hurry();
        } else if plan.servers.len() == 1 && promise == Promise::Kept && chance.permille(250) {
            plan.delay(chance);
        }
        plan
    }

    /// Makes requests, or replies, late by more than two time-outs again and again, while the connection goes on. A lease lasts a
    /// little longer than one time-out. So a request that was given up may be executed after the lease of an earlier grant.
    fn delay(&mut self, chance: &mut Chance) {
        let timeout = u64::try_from(self.command_timeout.as_nanos()).expect("short");
        self.longest_ttl = (self.command_timeout * 5 / 4).max(Duration::from_millis(300));
        self.keys.truncate(1);
        self.faults.clear();
        let mut at = 0;
        while at < self.healed_at {
            let (first, last) = (2 * timeout, timeout * 26 / 10);
            let span = chance.between(first, last);
            self.faults.push((
                at + chance.below(timeout),
                Fault::Hold {
                    host: 0,
                    process: Some(chance.index(self.processes.len())),
                    held: chance.pick(&[Held::Requests, Held::Replies]),
                    span: span.min(self.healed_at - at),
                },
            ));
            at += 2 * span;
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// Makes nearly all users share one key all the time; a shared lease is not given back by itself.
    fn hurry(&mut self) {
        self.hurries = true;
        self.keys.truncate(1);
        self.shares = 985;
        self.longest_ttl = Duration::from_secs(20);
        self.healed_at = 12 * SECOND;
        for process in &mut self.processes {
            process.tasks = 4;
        }
        // One of three modes.
        while self.mode_of(&self.keys[0]) != KeyMode::Shared {
            self.seed_of_modes += 1;
        }
    }

    /// The time after everything is healed in which some servers may still have no vote.
    pub(crate) fn settling(&self) -> Nanos {
        let forgets = |(_, fault): &(Nanos, Fault)| {
            matches!(
                fault,
                Fault::Restart { .. } | Fault::Amnesia { .. } | Fault::Flush { .. }
            )
        };
        if self.servers.len() == 1 || !self.faults.iter().any(forgets) {
            return 0;
        }
        let quarantine = self.longest_ttl * 2 + Duration::from_secs(5);
        // The last seconds for which a process watched a server do not count for the next process.
        u64::try_from(quarantine.as_nanos()).expect("short") + 5 * SECOND
    }

    /// Whether there are no faults, and no request has to poll.
    pub(crate) fn is_calm(&self) -> bool {
        self.faults.is_empty()
            && self.servers.len() == 1
            && self.servers[0].dialect == Dialect::Scripts
    }

    /// The largest number of permits. It changes once, halfway.
    pub(crate) fn most_permits(&self, now: Nanos) -> u64 {
        let is_first = now < self.healed_at / 2;
        let (first, last) = [(4, 6), (6, 4), (2, 3)][self.seed_of_permits];
        if is_first { first } else { last }
    }

    /// The mode in which all processes of this world take a key. Only scripts on a single server support modes.
    pub(crate) fn mode_of(&self, key: &str) -> KeyMode {
        let has_modes = self.has_results();
        let sum: u64 = key.bytes().map(u64::from).sum();
        match (sum + self.seed_of_modes) % 3 {
            1 if has_modes => KeyMode::Shared,
            2 if has_modes => KeyMode::Permits,
            _ => KeyMode::Exclusive,
        }
    }

    /// Whether the results of bodies that run once are kept.
    pub(crate) fn has_results(&self) -> bool {
        self.servers.len() == 1 && self.servers[0].dialect.has_scripts()
    }

    /// The sum of all steps by which clocks are set back.
    pub(crate) fn set_back(&self) -> Duration {
        let back = self.faults.iter().map(|(_, fault)| match fault {
            Fault::Step { by_us, .. } => u64::try_from(-by_us).unwrap_or(0),
            _ => 0,
        });
        Duration::from_micros(back.sum())
    }

    /// The time for which a lock may be free while an attempt waits for it and nothing is broken. It is a beat, the time to
    /// notice a dead connection, and the time to make another. A reply may take twice as long as the slowest one lately, which
    /// took four time-outs at most. Transactions wait for each other, and need longer.
    pub(crate) fn idle(&self) -> Nanos {
        let timeout = u64::try_from(self.command_timeout.as_nanos()).expect("short");
        let slow = if self.faults.is_empty() { 2 } else { 10 } * timeout;
        match self.servers[0].dialect {
            Dialect::Watch => 4 * SECOND + 4 * timeout + slow,
            _ => 2 * SECOND + slow,
        }
    }

    /// The time that a clean-up may take when nothing is broken. It is one try without a reply on each connection, and the
    /// longest pause between two tries.
    pub(crate) fn forgotten(&self) -> Nanos {
        self.idle() + 2 * SECOND
    }

    fn add_faults(&mut self, chance: &mut Chance, promise: Promise) {
        let count = chance.pick(&[0, 3, 6, 12, 20]);
        let mut forgetful = (self.servers.len() - 1) / 2;
        for _ in 0..count {
            let at = chance.below(self.healed_at);
            let span = self.span(chance).min(self.healed_at - at);
            let fault = match chance.below(12) {
                0..7 => self.of_the_network(chance, span),
                7..9 => self.of_a_process(chance, span),
                _ => self.of_a_server(chance, span, promise, &mut forgetful),
            };
            self.faults.push((at, fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    fn span(&self, chance: &mut Chance) -> Nanos {
        let ttl = u64::try_from(self.longest_ttl.as_nanos()).expect("short");
        let ttl = ttl.min(3 * SECOND);
        let least = 10 * MILLI;
        chance.pick(&[least, 100 * MILLI, ttl / 2, ttl, ttl * 3 / 2]) + chance.below(ttl / 4)
    }

    fn host(&self, chance: &mut Chance) -> usize {
        chance.index(self.servers.len())
    }

    fn of_the_network(&self, chance: &mut Chance, span: Nanos) -> Fault {
        let host = self.host(chance);
        // The fault hits one process, or all.
        let process = chance
            .permille(700)
            .then(|| chance.index(self.processes.len()));
        // Held-back bytes must not arrive after the time for which the checks wait for a lease to end by itself.
        let command_timeout = u64::try_from(self.command_timeout.as_nanos()).expect("short");
        let held = span.min(3 * command_timeout);
        match chance.below(9) {
            0 => Fault::Reset { host, process },
            1 => Fault::ResetForTheClient { host, process },
            2 => Fault::HalfOpen { host, process },
            3 | 4 => Fault::NoReplies { host, process },
            5 => Fault::NoRequests { host, process },
            6 => Fault::Hold {
                host,
                process,
                held: chance.pick(&[Held::Both, Held::Requests, Held::Replies]),
                span: held,
            },
            7 => Fault::BlackHole {
                host,
                process,
                span,
            },
            _ => Fault::Slow {
                host,
                process,
                more: chance.below(held) / 4,
                span,
            },
        }
    }

    fn of_a_process(&self, chance: &mut Chance, span: Nanos) -> Fault {
        let process = chance.index(self.processes.len());
        match chance.below(4) {
            0 | 1 => Fault::Stop { process, span },
            2 => Fault::Block { process, span },
            _ => Fault::Kill { process },
        }
    }

    fn of_a_server(
        &self,
        chance: &mut Chance,
        span: Nanos,
        promise: Promise,
        forgetful: &mut usize,
    ) -> Fault {
        let host = self.host(chance);
        let key = chance.index(self.keys.len());
        let sends_reset = chance.permille(600);
        let command_timeout = u64::try_from(self.command_timeout.as_nanos()).expect("short");
        match chance.below(6) {
            0 => Fault::Stall {
                host,
                span: span.min(3 * command_timeout),
            },
            1 => Fault::Restart {
                host,
                span,
                sends_reset,
            },
            2 => Fault::Foreign {
                host,
                key,
                span,
                expires: chance.permille(700),
            },
            // A minority that loses its data breaks no promise.
            3 if *forgetful > 0 => {
                *forgetful -= 1;
                Fault::Amnesia {
                    host,
                    span,
                    sends_reset,
                }
            }
            _ => match promise {
                Promise::Kept => Fault::Restart {
                    host,
                    span,
                    sends_reset,
                },
                Promise::DataLost => match chance.below(3) {
                    0 => Fault::Amnesia {
                        host,
                        span,
                        sends_reset,
                    },
                    1 => Fault::Flush { host },
                    _ => Fault::Delete { host, key },
                },
                Promise::ClockSet => {
                    let by_us = chance.pick(&[-400_000, -50_000, 50_000, 400_000]);
                    let by_us = if self.servers.len() == 1 {
                        by_us * 5
                    } else {
                        by_us
                    };
                    Fault::Step { host, by_us }
                }
            },
        }
    }
}

impl ServerPlan {
    fn all(chance: &mut Chance, count: usize) -> Vec<Self> {
        let dialect = match chance.below(10) {
            0 => Dialect::Resp2,
            1 => Dialect::Watch,
            _ => Dialect::Scripts,
        };
        let ahead = match count {
            1 => 50_000_000,
            _ => chance.pick(&[1_000, 100_000, 400_000]),
        };
        let each = |_| Self {
            // Locks on several servers need scripts.
            dialect: if count == 1 {
                dialect
            } else {
                Dialect::Scripts
            },
            ahead_us: around(chance, ahead),
            rate_ppm: around(chance, 4000),
        };
        (0..count).map(each).collect()
    }
}

impl ProcessPlan {
    fn of(chance: &mut Chance, servers: usize, promise: Promise) -> Self {
        Self {
            managers: chance.pick(&[1, 1, 1, 2]),
            tasks: chance.pick(&[1, 1, 2, 3]),
            booted_before: chance.below(1_000_000) * SECOND,
            rate_ppm: around(chance, 4000),
            ahead_us: around(chance, if servers == 1 { 50_000_000 } else { 100_000 }),
            forces: if promise == Promise::DataLost { 20 } else { 0 },
        }
    }
}

fn around(chance: &mut Chance, most: u64) -> i64 {
    let most = i64::try_from(most).expect("small");
    let drawn = chance.below(2_000_001);
    (i64::try_from(drawn).expect("small") - 1_000_000) * most / 1_000_000
}
