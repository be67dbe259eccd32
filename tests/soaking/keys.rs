//! The keys that are locked, their ttls, and the processes that want them.

use std::time::Duration;

use lock_tests::{Mode, Random, history::Demands};

use crate::topology::Topology;

/// The use of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// All processes want it all the time.
    Hot,
    /// Two processes want it now and then.
    Few,
    /// It is taken together with the other key of the pair, in both orders, and alone.
    Pair,
    /// It is held for much longer than its ttl now and then.
    Long,
    /// Its guards are leaked, and only `max_hold` frees it.
    Leaked,
    /// One task holds it for several ttls.
    Alone,
    /// One task takes it, drops the future in flight, and takes it again.
    Private,
    /// Most attempts share it, and some want it alone.
    Shared,
    /// Each attempt wants one of three permits.
    Permits,
    /// Each attempt wants one of four permits, or one of six.
    MorePermits,
}

/// A key, and how it is locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) name: String,
    pub(crate) ttl: Duration,
    pub(crate) usage: Use,
    /// The mode in which it is taken this time.
    pub(crate) mode: Mode,
}

/// The time beyond the ttl that renewals, reconnecting and a busy machine may take.
const SLACK: Duration = Duration::from_secs(2);

/// Longer than any task holds a lock on purpose, on a busy machine.
const HOLD: Duration = Duration::from_millis(500);

/// The longest time that a leaked guard keeps its lock.
pub(crate) const MAX_HOLD: Duration = Duration::from_millis(700);

/// The longest time that a lock is held on purpose.
pub(crate) const LONG_HOLD: Duration = Duration::from_secs(3);

/// Name, ttl in milliseconds, use. All processes have the same ttl for a key, so that it is known how long a crash blocks it.
const SHARED: [(&str, u64, Use); 13] = [
    ("hot-0", 300, Use::Hot),
    ("hot-1", 1_000, Use::Hot),
    ("few-0", 1_500, Use::Few),
    ("few-1", 3_000, Use::Few),
    ("few-2", 5_000, Use::Few),
    ("few-3", 10_000, Use::Few),
    ("pair-0", 2_000, Use::Pair),
    ("pair-1", 2_000, Use::Pair),
    ("long", 800, Use::Long),
    ("leaked", 600, Use::Leaked),
    ("shared", 1_000, Use::Shared),
    ("permits", 800, Use::Permits),
    ("more-permits", 1_500, Use::MorePermits),
];

const PRIVATE: &str = "private-";
/// Shorter than most pauses between faults, so that a lease which was left behind shows within a pause.
const PRIVATE_TTL: Duration = Duration::from_secs(4);

const ALONE: &str = "alone-";
const ALONE_TTL: Duration = Duration::from_millis(800);

impl Kept {
    /// The longest ttl of all.
    pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(10);

    /// The keys of the process at this place. `has_modes`: the servers have other modes than the exclusive one.
    pub(crate) fn wanted_by(place: u64, has_modes: bool) -> Vec<Self> {
        let shared = SHARED.iter().enumerate();
        let shared = shared.filter(|(_, (_, _, usage))| has_modes || !usage.is_beside());
        let wanted = shared.filter(|(number, (_, _, usage))| {
            let number = u64::try_from(*number).expect("a few");
            *usage != Use::Few || place % 4 == number % 4
        });
        wanted.map(|(_, row)| Self::of(*row)).collect()
    }

    /// The key of one task that drops futures in flight, by the number of its process.
    pub(crate) fn private(process: u32) -> Self {
        Self {
            name: format!("{PRIVATE}{process}"),
            ttl: PRIVATE_TTL,
            usage: Use::Private,
            mode: Mode::Exclusive,
        }
    }

    /// The key of one task that holds it for several ttls, by the number of its process.
    pub(crate) fn alone(process: u32) -> Self {
        Self {
            name: format!("{ALONE}{process}"),
            ttl: ALONE_TTL,
            usage: Use::Alone,
            mode: Mode::Exclusive,
        }
    }

    /// The same key with a ttl of at most this.
    pub(crate) fn at_most(mut self, ttl: Duration) -> Self {
        self.ttl = self.ttl.min(ttl);
        self
    }

    /// Draws one of these keys, as a rule a hot one.
    pub(crate) fn choose(keys: &[Self], random: &mut Random) -> Self {
        let weight = |key: &Self| match key.usage {
            Use::Hot => 6,
            Use::Shared | Use::Permits | Use::MorePermits => 4,
            Use::Few | Use::Pair => 2,
            Use::Long | Use::Leaked | Use::Alone | Use::Private => 1,
        };
        let choices: Vec<(u64, &Self)> = keys.iter().map(|key| (weight(key), key)).collect();
        let key = random.weighted(&choices).clone();
        let mode = match key.usage {
            Use::Shared if random.percent(75) => Mode::Shared,
            Use::Permits => Mode::Permits(3),
            Use::MorePermits => Mode::Permits(if random.percent(50) { 4 } else { 6 }),
            _ => Mode::Exclusive,
        };
        Self { mode, ..key }
    }

    fn of((name, ttl, usage): (&str, u64, Use)) -> Self {
        Self {
            name: name.to_owned(),
            ttl: Duration::from_millis(ttl),
            usage,
            mode: Mode::Exclusive,
        }
    }
}

impl Use {
    /// Whether several holders may have it at a time.
    fn is_beside(self) -> bool {
        matches!(self, Self::Shared | Self::Permits | Self::MorePermits)
    }
}

/// The checker's demands on a key, where no ttl is longer than `longest_ttl`.
pub(crate) fn demands(name: &str, topology: Topology, longest_ttl: Duration) -> Option<Demands> {
    let shared = SHARED.iter().find(|row| row.0 == name);
    let key = match shared {
        Some(row) => Kept::of(*row),
        None => private(name)?,
    };
    let key = key.at_most(longest_ttl);
    let service = match key.usage {
        // All keys share a counter there, and processes compete for it in rounds with growing pauses. So a wait of seconds for a
        // free key looks the same as a wait for a key that was left behind.
        Use::Alone | Use::Private if topology.counts_in_rounds() => PRIVATE_TTL + SLACK,
        // A dropped future leaves no lock behind: the key is free again in less than a ttl.
        Use::Private => key.ttl * 3 / 4,
        Use::Alone => SLACK,
        Use::Leaked => key.ttl + SLACK + MAX_HOLD,
        Use::Long => key.ttl + SLACK + LONG_HOLD + HOLD,
        Use::Hot | Use::Few | Use::Pair | Use::Permits | Use::MorePermits => key.ttl + SLACK + HOLD,
        // One whole phase of the other mode, and the rest of another phase.
        Use::Shared => key.ttl + SLACK + 2 * HOLD,
    };
    Some(Demands {
        ttl: key.ttl,
        service,
        is_private: matches!(key.usage, Use::Alone | Use::Private),
    })
}

fn private(name: &str) -> Option<Kept> {
    let number = |prefix: &str| name.strip_prefix(prefix)?.parse().ok();
    let alone = || number(ALONE).map(Kept::alone);
    number(PRIVATE).map(Kept::private).or_else(alone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_locked_has_demands_and_nothing_else_has() {
        for place in 0..8 {
            for key in Kept::wanted_by(place, true) {
                let demands = demands(&key.name, Topology::One, Kept::LONGEST_TTL);
                let demands = demands.expect("known");
                assert_eq!(demands.ttl, key.ttl);
                assert!(key.ttl <= Kept::LONGEST_TTL);
            }
        }
        let (own, short) = (Kept::private(17), Duration::from_secs(3));
        let asked = |name: &str, topology| demands(name, topology, short);
        let found = asked(&own.name, Topology::One).expect("known");
        assert!(found.is_private);
        assert_eq!((found.ttl, found.service), (short, short * 3 / 4));
        let slow = asked(&own.name, Topology::Redlock).expect("known");
        assert!(slow.service > found.ttl);
        let alone = asked(&Kept::alone(17).name, Topology::One);
        assert!(alone.is_some_and(|found| found.is_private));
        assert_eq!(asked("private-x", Topology::One), None);
        assert_eq!(asked("other", Topology::One), None);
    }

    #[test]
    fn each_key_that_few_want_is_wanted_by_two_processes_of_eight() {
        for (name, _, usage) in SHARED {
            let wanting = (0..8).filter(|&place| {
                let keys = Kept::wanted_by(place, true);
                keys.iter().any(|key| key.name == name)
            });
            assert_eq!(
                wanting.count(),
                if usage == Use::Few { 2 } else { 8 },
                "{name}"
            );
        }
    }
}
