//! How long a request and its reply take, as measured lately.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// A server is near if its replies can come within this many nanoseconds.
const NEAR: u64 = 1_000_000;

/// In nanoseconds.
#[derive(Debug)]
pub(crate) struct RoundTrip {
    /// Zero if not known.
    smoothed: AtomicU64,
    /// The shortest one of late.
    shortest: AtomicU64,
    /// Whether that is short.
    is_near: Arc<AtomicBool>,
}

impl Default for RoundTrip {
    fn default() -> Self {
        Self {
            smoothed: AtomicU64::new(0),
            shortest: AtomicU64::new(u64::MAX),
            is_near: Arc::default(),
        }
    }
}

impl RoundTrip {
    /// Zero if not known.
    pub(crate) fn smoothed(&self) -> Duration {
        Duration::from_nanos(self.smoothed.load(Ordering::Relaxed))
    }

    /// Whether replies come so soon that it pays to wait for them.
    pub(crate) fn is_near(&self) -> &Arc<AtomicBool> {
        &self.is_near
    }

    /// An eighth of each new measurement, as TCP does.
    pub(crate) fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let before = self.smoothed.load(Ordering::Relaxed);
        let after = if before == 0 {
            took
        } else {
            before - before / 8 + took / 8
        };
        self.smoothed.store(after, Ordering::Relaxed);
        // The minimum decays slowly: under load few samples show the latency of the network alone.
        let shortest = self.shortest.load(Ordering::Relaxed);
        let shortest = took.min(shortest.saturating_add(shortest / 1024));
        self.shortest.store(shortest, Ordering::Relaxed);
        self.is_near.store(shortest < NEAR, Ordering::Relaxed);
    }
}
