//! Pauses that differ from one process to the next.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::runtime::clock::Clock;

/// Between 0.5 and 1.5 of `span`, so that processes that were stopped together do not retry together.
pub(crate) fn jittered(span: Duration) -> Duration {
    let fraction = u32::try_from(random_u64() >> 48).unwrap_or(0);
    span / 2 + span.saturating_mul(fraction) / 0x1_0000
}

/// A number that looks random, by Steele and Vigna's `SplitMix64`. For pauses; nothing secret comes from here.
fn random_u64() -> u64 {
    static STATE: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(std::process::id().into()));
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    #[cfg(feature = "simulation")]
    if let Some(number) = crate::runtime::simulation::ask(|world| world.random()) {
        return number;
    }
    // Processes that were started together differ by their ids, and hosts by the start of their clocks. A forked child differs from
    // its parent by the time: they do not call this in the same nanosecond.
    let mut z = STATE.fetch_add(STEP, Ordering::Relaxed) ^ Clock::Boot.now().as_nanos();
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_within_half_and_one_and_a_half() {
        let span = Duration::from_millis(100);
        let all: Vec<_> = (0..1000).map(|_| jittered(span)).collect();
        assert!(
            all.iter().all(|d| (span / 2..span * 3 / 2).contains(d)),
            "{all:?}"
        );
        assert!(all.iter().any(|d| *d < span) && all.iter().any(|d| *d > span));
    }
}
