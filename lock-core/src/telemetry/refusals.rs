//! The log line for refused requests, of which there may be thousands a second in an outage.

use std::{error::Error as _, mem, time::Duration};

use crate::{error::LockError, moment::Moment, runtime::mutex::Mutex};

/// The shortest time between two lines.
const PAUSE: Duration = Duration::from_secs(1);

/// Writes at most one line a second, and counts the others.
#[derive(Debug)]
pub(crate) struct Refusals {
    /// When the last line was written, and how many have been left out since.
    last: Mutex<(Option<Moment>, u64)>,
}

impl Refusals {
    pub(crate) const fn new() -> Self {
        let last = Mutex::new((None, 0));
        Self { last }
    }

    /// Logs that a request is refused because a lock failed, with the status code that a client of a web service gets. All
    /// callers must pass the time of the same clock.
    pub(crate) fn log(&self, status: u16, error: &LockError, now: Moment) {
        if let Some(left_out) = self.due(now) {
            let not_logged = (left_out > 0).then_some(left_out);
            tracing::warn!(%error, source = error.source(), not_logged, "refused with {status}");
        }
    }

    /// Returns how many lines were left out before this one, or `None` if this one must be left out, too.
    fn due(&self, now: Moment) -> Option<u64> {
        let (last, left_out) = &mut *self.last.lock();
        if last.is_some_and(|last| now.since(last) < PAUSE) {
            *left_out += 1;
            return None;
        }
        *last = Some(now);
        Some(mem::take(left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_one_line_a_second_is_written_and_it_counts_the_others() {
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
