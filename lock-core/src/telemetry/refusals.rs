//! The line in the log for requests that are refused. In an outage there may be thousands of them a second.

use std::{
    error::Error as _,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::{error::LockError, moment::Moment};

/// The shortest time between two lines.
const PAUSE: Duration = Duration::from_secs(1);

const NEVER: u64 = u64::MAX;

/// Writes at most one line a second, and counts the others.
#[derive(Debug)]
pub(crate) struct Refusals {
    /// When the last line was written, in nanoseconds of one clock; `NEVER` before the first line.
    last: AtomicU64,
    /// How many lines were left out since.
    left_out: AtomicU64,
}

impl Refusals {
    pub(crate) const fn new() -> Self {
        Self {
            last: AtomicU64::new(NEVER),
            left_out: AtomicU64::new(0),
        }
    }

    /// Logs that a request is refused for want of a lock. `status` is what a client of a web service gets. Each caller gives the
    /// time of the same clock.
    pub(crate) fn log(&self, status: u16, error: &LockError, now: Moment) {
        if let Some(left_out) = self.due(now) {
            let not_logged = (left_out > 0).then_some(left_out);
            tracing::warn!(%error, source = error.source(), not_logged, "refused with {status}");
        }
    }

    /// Returns how many lines were left out before this one; `None` if this one is left out, too.
    fn due(&self, now: Moment) -> Option<u64> {
        let last = self.last.load(Relaxed);
        let is_early = last != NEVER && now.since(Moment::from_nanos(last)) < PAUSE;
        let this = now.as_nanos();
        // If two threads write at once, one of them finds another value here, and is counted.
        if is_early
            || self
                .last
                .compare_exchange(last, this, Relaxed, Relaxed)
                .is_err()
        {
            self.left_out.fetch_add(1, Relaxed);
            return None;
        }
        Some(self.left_out.swap(0, Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_line_a_second_which_counts_the_others() {
        let refusals = Refusals::new();
        let due = |millis: u64| refusals.due(Moment::from_nanos(millis * 1_000_000));
        assert_eq!(due(0), Some(0), "the first one");
        assert_eq!([due(0), due(1), due(999)], [None; 3]);
        assert_eq!(due(1000), Some(3));
        assert_eq!(due(1999), None);
        assert_eq!(due(60_000), Some(1));
        assert_eq!(due(120_000), Some(0));
    }
}
