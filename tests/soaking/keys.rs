//! The keys, their ttls, and the processes that lock them.

use std::time::Duration;

use lock_tests::{Mode, Random, history::Requirements};

use crate::topology::Topology;

/// The use of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// All processes lock it all the time.
    Hot,
    /// Two processes lock it now and then.
    Few,
    /// It is locked together with the other key of the pair, in both orders, and by itself.
    Pair,
    /// It is held for much longer than its ttl now and then.
    Long,
    /// Its guards are leaked, and only `max_hold` releases it.
    Leaked,
    /// One task holds it for several ttls.
    Alone,
    /// One task requests it, drops the future in flight, and requests it again.
    Private,
    /// Most attempts share it, and some are exclusive.
    Shared,
    /// It has three permits.
    Permits,
    /// Each attempt requests one of four permits, or one of six.
    MorePermits,
}

/// A key, and how it is locked.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) name: String,
    pub(crate) ttl: Duration,
    pub(crate) usage: Use,
    /// The mode in which it is locked this time.
    pub(crate) mode: Mode,
}

/// The time that renewals, reconnecting and a busy machine may take in addition to the ttl.
const SLACK: Duration = Duration::from_secs(2);

/// Longer than most holds, even on a busy machine.
const HOLD: Duration = Duration::from_millis(500);

/// The longest time for which a leaked guard holds its lock.
pub(crate) const MAX_HOLD: Duration = Duration::from_millis(700);

/// The longest hold.
pub(crate) const LONG_HOLD: Duration = Duration::from_secs(3);

/// Name, ttl in milliseconds, and use. All processes use the same ttl for a key, which bounds the time that a crash blocks it.
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
/// Shorter than most pauses between faults, so that a lock that was left behind is found within a pause.
const PRIVATE_TTL: Duration = Duration::from_secs(4);

const ALONE: &str = "alone-";
const ALONE_TTL: Duration = Duration::from_millis(800);

impl Kept {
    /// The longest of all ttls.
    pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(10);

    /// Returns the shared keys of the process at this place. `has_modes` means that the servers support all modes.
    pub(crate) fn wanted_by(place: u64, has_modes: bool) -> Vec<Self> {
        let shared = SHARED.iter().enumerate();
        let shared = shared.filter(|(_, (_, _, usage))| has_modes || !usage.is_non_exclusive());
        let wanted = shared.filter(|(number, (_, _, usage))| {
            let number = u64::try_from(*number).expect("a few");
            *usage != Use::Few || place % 4 == number % 4
        });
        wanted.map(|(_, row)| Self::of(*row)).collect()
    }

    /// Returns the key of a task that drops futures in flight, by the number of its process.
    pub(crate) fn private(process: u32) -> Self {
        Self {
            name: format!("{PRIVATE}{process}"),
            ttl: PRIVATE_TTL,
            usage: Use::Private,
            mode: Mode::Exclusive,
        }
    }

    /// Returns the key of a task that holds it for several ttls, by the number of its process.
    pub(crate) fn alone(process: u32) -> Self {
        Self {
            name: format!("{ALONE}{process}"),
            ttl: ALONE_TTL,
            usage: Use::Alone,
            mode: Mode::Exclusive,
        }
    }

    /// Reduces the ttl to at most this.
    pub(crate) fn at_most(mut self, ttl: Duration) -> Self {
        self.ttl = self.ttl.min(ttl);
        self
    }

    /// Draws one of these keys, most often a hot one.
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
    /// Returns whether several holders may hold the key at the same time.
    fn is_non_exclusive(self) -> bool {
        matches!(self, Self::Shared | Self::Permits | Self::MorePermits)
    }
}

/// Returns the checker's requirements for a key, where no ttl is longer than `longest_ttl`.
pub(crate) fn requirements(
    name: &str,
    topology: Topology,
    longest_ttl: Duration,
) -> Option<Requirements> {
    let shared = SHARED.iter().find(|row| row.0 == name);
    let key = match shared {
        Some(row) => Kept::of(*row),
        None => private(name)?,
    };
    let key = key.at_most(longest_ttl);
    let service = match key.usage {
        // Processes compete for one counter there, in rounds with growing pauses. So a wait of seconds for a free key cannot be
        // told from a wait for a key that was left behind.
        Use::Alone | Use::Private if topology.counts_in_rounds() => PRIVATE_TTL + SLACK,
        // A dropped future leaves no lock behind, so the key is free again in less than a ttl.
        Use::Private => key.ttl * 3 / 4,
        Use::Alone => SLACK,
        Use::Leaked => key.ttl + SLACK + MAX_HOLD,
        Use::Long => key.ttl + SLACK + LONG_HOLD + HOLD,
        Use::Hot | Use::Few | Use::Pair | Use::Permits | Use::MorePermits => key.ttl + SLACK + HOLD,
        // A whole phase of the other mode, and the rest of another one.
        Use::Shared => key.ttl + SLACK + 2 * HOLD,
    };
    Some(Requirements {
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
