//! How long a request and its reply take, as measured lately.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// In nanoseconds; zero if not known.
#[derive(Debug, Default)]
pub(crate) struct RoundTrip(AtomicU64);

impl RoundTrip {
    /// Zero if not known.
    pub(crate) fn smoothed(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    /// Notes a reply that came too late for its caller. The whole measurement counts at once, so that the next callers wait long
    /// enough.
    pub(crate) fn note_late(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_max(took, Ordering::Relaxed);
    }

    /// Notes a reply in time. Each new measurement counts for an eighth, as in TCP.
    pub(crate) fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let before = self.0.load(Ordering::Relaxed);
        let after = if before == 0 {
            took
        } else {
            before - before / 8 + took / 8
        };
        self.0.store(after, Ordering::Relaxed);
    }
}
