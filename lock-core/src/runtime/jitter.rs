//! Random pauses, which differ from process to process.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// The state of the generator. Each manager stirs it, so that processes that were forked from one parent differ.
static STATE: AtomicU64 = AtomicU64::new(0);

/// Adds random bits from the system's generator, which make the pauses of this process differ from those of others.
pub(crate) fn stir(random: u64) {
    STATE.fetch_add(random, Ordering::Relaxed);
}

/// Returns a pseudo-random number, by `SplitMix64` of Steele and Vigna. Nothing secret is derived from it.
pub(crate) fn number() -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut z = STATE.fetch_add(STEP, Ordering::Relaxed);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    #[cfg(feature = "simulation")]
    if let Some(number) = crate::runtime::simulation::ask(|world| world.random()) {
        z = number;
    }
    z
}

/// Returns a random time between half of `span` and one and a half times `span`, so that processes that were stopped
/// together do not retry together.
pub(crate) fn jittered(span: Duration) -> Duration {
    let fraction = u32::try_from(number() >> 48).unwrap_or(0);
    span / 2 + span.saturating_mul(fraction) / 0x1_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_between_half_and_one_and_a_half_of_the_span() {
        let span = Duration::from_millis(100);
        let all: Vec<_> = (0..1000).map(|_| jittered(span)).collect();
        assert!(
            all.iter().all(|d| (span / 2..span * 3 / 2).contains(d)),
            "{all:?}"
        );
        assert!(all.iter().any(|d| *d < span) && all.iter().any(|d| *d > span));
    }
}
