//! The plan of a seed's world: the number of servers and processes, their properties, what breaks and when.
//!
//! All faults are drawn before the world begins, for points of virtual time. The soak has a plan of its own, with faults that the
//! model does not have, such as fail-overs and moving slots.

use std::time::Duration;

use crate::{
    chance::Chance,
    model::Dialect,
    network::{Breakage, Data, Held, MILLI, Nanos, SECOND, Scope},
    workload::nanos,
    world::ProcessClock,
};

/// Everything that the seed determines before the world begins.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) servers: Vec<ServerPlan>,
    pub(crate) latency: (Nanos, Nanos),
    pub(crate) processes: Vec<ProcessPlan>,
    pub(crate) keys: Vec<String>,
    /// Determines, together with the name of a key, the mode in which the key is locked.
    seed_of_modes: u64,
    seed_of_permits: usize,
    /// The number of attempts in a thousand that share a shared key.
    pub(crate) shares: u64,
    /// Set if users retry at once, so that there are readers all the time.
    pub(crate) hurries: bool,
    /// The longest ttl of all managers.
    pub(crate) longest_ttl: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) faults: Vec<(Nanos, Fault)>,
    /// The time from which nothing is broken, and no user starts an operation.
    pub(crate) healed_at: Nanos,
}

/// The mode in which a key is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyMode {
    Exclusive,
    /// Shared by most attempts, and exclusively by some.
    Shared,
    /// With permits, whose number each attempt draws, up to a bound.
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
    /// The number of users' tasks per manager.
    pub(crate) tasks: usize,
    pub(crate) clock: ProcessClock,
    /// The number of operations in a thousand that force a release.
    pub(crate) forces: u64,
}

/// A fault. Processes, servers and keys are given by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Break(Scope, Breakage),
    /// Nothing arrives for a while, in one direction or in both, and then everything does.
    Hold(Scope, Held, Nanos),
    /// For a while, no process can connect. Nothing arrives on existing connections any more.
    BlackHole(Scope, Nanos),
    /// Each message takes longer by `more`.
    Slow {
        scope: Scope,
        more: Nanos,
        span: Nanos,
    },
    Stall {
        host: usize,
        span: Nanos,
    },
    Restart {
        host: usize,
        data: Data,
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
    /// A lock of another library, until it expires or is deleted by hand.
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

/// The promises that the faults may break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    /// None.
    Kept,
    /// Exclusion: data are lost, or keys are deleted by hand.
    DataLost,
    /// Exclusion: the clock of a server is set.
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

    /// Repeatedly delays requests or replies by more than two time-outs, on connections that stay open. A lease lasts a little
    /// longer than one time-out, so an abandoned request may be executed after the lease of an earlier grant.
    fn delay(&mut self, chance: &mut Chance) {
        let timeout = nanos(self.command_timeout);
        self.longest_ttl = (self.command_timeout * 5 / 4).max(Duration::from_millis(300));
        self.keys.truncate(1);
        self.faults.clear();
        let mut at = 0;
        while at < self.healed_at {
            let (first, last) = (2 * timeout, timeout * 26 / 10);
            let span = chance.between(first, last);
            self.faults.push((
                at + chance.below(timeout),
                Fault::Hold(
                    Scope {
                        host: 0,
                        process: Some(chance.index(self.processes.len())),
                    },
                    chance.pick(&[Held::Requests, Held::Replies]),
                    span.min(self.healed_at - at),
                ),
            ));
            at += 2 * span;
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// Makes nearly all users share one key all the time, so that its share is never released by itself.
    fn hurry(&mut self) {
        self.hurries = true;
        self.keys.truncate(1);
        self.shares = 985;
        self.longest_ttl = Duration::from_secs(20);
        self.healed_at = 12 * SECOND;
        for process in &mut self.processes {
            process.tasks = 4;
        }
        // There are three modes.
        while self.mode_of(&self.keys[0]) != KeyMode::Shared {
            self.seed_of_modes += 1;
        }
    }

    /// Returns the time after the last fault for which some servers may still have no vote.
    pub(crate) fn settling(&self) -> Nanos {
        let forgets = |(_, fault): &(Nanos, Fault)| {
            matches!(fault, Fault::Restart { .. } | Fault::Flush { .. })
        };
        if self.servers.len() == 1 || !self.faults.iter().any(forgets) {
            return 0;
        }
        let quarantine = self.longest_ttl * 2 + Duration::from_secs(5);
        // The last seconds for which a process watched a server do not count for the next one.
        nanos(quarantine) + 5 * SECOND
    }

    /// Returns whether there are no faults, and no request has to poll.
    pub(crate) fn is_calm(&self) -> bool {
        self.faults.is_empty()
            && self.servers.len() == 1
            && self.servers[0].dialect == Dialect::Scripts
    }

    /// Returns the largest number of permits, which changes halfway.
    pub(crate) fn most_permits(&self, now: Nanos) -> u64 {
        let is_first = now < self.healed_at / 2;
        let (first, last) = [(4, 6), (6, 4), (2, 3)][self.seed_of_permits];
        if is_first { first } else { last }
    }

    /// Returns the mode in which a key is locked. Only scripts on a single server support all modes.
    pub(crate) fn mode_of(&self, key: &str) -> KeyMode {
        let has_modes = self.has_results();
        let sum: u64 = key.bytes().map(u64::from).sum();
        match (sum + self.seed_of_modes) % 3 {
            1 if has_modes => KeyMode::Shared,
            2 if has_modes => KeyMode::Permits,
            _ => KeyMode::Exclusive,
        }
    }

    /// Returns whether the servers can store the results of bodies that run once.
    pub(crate) fn has_results(&self) -> bool {
        self.servers.len() == 1 && self.servers[0].dialect.has_scripts()
    }

    /// Returns the sum of all spans by which clocks are set back.
    pub(crate) fn set_back(&self) -> Duration {
        let back = self.faults.iter().map(|(_, fault)| match fault {
            Fault::Step { by_us, .. } => u64::try_from(-by_us).unwrap_or(0),
            _ => 0,
        });
        Duration::from_micros(back.sum())
    }

    /// Returns the time for which a lock may be free while an attempt waits for it and nothing is broken. It consists of a beat,
    /// the time to notice a dead connection, and the time to open another. A reply may take twice as long as the slowest recent
    /// one, which took at most four time-outs. Transactions wait for each other, and take longer.
    pub(crate) fn idle(&self) -> Nanos {
        let timeout = nanos(self.command_timeout);
        let slow = if self.faults.is_empty() { 2 } else { 10 } * timeout;
        match self.servers[0].dialect {
            Dialect::Watch => 4 * SECOND + 4 * timeout + slow,
            _ => 2 * SECOND + slow,
        }
    }

    /// Returns the time that a clean-up may take while nothing is broken: one try without a reply on each connection, and the
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
        let ttl = nanos(self.longest_ttl);
        let ttl = ttl.min(3 * SECOND);
        let least = 10 * MILLI;
        chance.pick(&[least, 100 * MILLI, ttl / 2, ttl, ttl * 3 / 2]) + chance.below(ttl / 4)
    }

    fn host(&self, chance: &mut Chance) -> usize {
        chance.index(self.servers.len())
    }

    fn of_the_network(&self, chance: &mut Chance, span: Nanos) -> Fault {
        let host = self.host(chance);
        // The fault hits one process, or all of them.
        let process = chance
            .permille(700)
            .then(|| chance.index(self.processes.len()));
        let scope = Scope { process, host };
        // Delayed bytes must arrive before the checks expect a lease to have ended.
        let command_timeout = nanos(self.command_timeout);
        let held = span.min(3 * command_timeout);
        match chance.below(9) {
            0 => Fault::Break(scope, Breakage::Reset),
            1 => Fault::Break(scope, Breakage::ResetForTheClient),
            2 => Fault::Break(scope, Breakage::HalfOpen),
            3 | 4 => Fault::Break(scope, Breakage::NoReplies),
            5 => Fault::Break(scope, Breakage::NoRequests),
            6 => {
                let which = chance.pick(&[Held::Both, Held::Requests, Held::Replies]);
                Fault::Hold(scope, which, held)
            }
            7 => Fault::BlackHole(scope, span),
            _ => Fault::Slow {
                scope,
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
        let command_timeout = nanos(self.command_timeout);
        let restart = |data| Fault::Restart {
            host,
            data,
            span,
            sends_reset,
        };
        match chance.below(6) {
            0 => Fault::Stall {
                host,
                span: span.min(3 * command_timeout),
            },
            1 => restart(Data::Kept),
            2 => Fault::Foreign {
                host,
                key,
                span,
                expires: chance.permille(700),
            },
            // A minority that loses its data breaks no promise.
            3 if *forgetful > 0 => {
                *forgetful -= 1;
                restart(Data::Lost)
            }
            _ => match promise {
                Promise::Kept => restart(Data::Kept),
                Promise::DataLost => match chance.below(3) {
                    0 => restart(Data::Lost),
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
            // Redlock needs scripts.
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
            clock: ProcessClock {
                booted_before: chance.below(1_000_000) * SECOND,
                rate_ppm: around(chance, 4000),
                ahead_us: around(chance, if servers == 1 { 50_000_000 } else { 100_000 }),
            },
            forces: if promise == Promise::DataLost { 20 } else { 0 },
        }
    }
}

fn around(chance: &mut Chance, most: u64) -> i64 {
    let most = i64::try_from(most).expect("small");
    let drawn = chance.below(2_000_001);
    (i64::try_from(drawn).expect("small") - 1_000_000) * most / 1_000_000
}
