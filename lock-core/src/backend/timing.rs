//! Bounds on how long a backend may take.
//!
//! A reply that arrives after its time-out is measured, too, and counts in full at once. Round trips of more than two command
//! time-outs are not supported: such a connection counts as dead.

use std::time::Duration;

use crate::error::LockError;

/// Bounds on how long things take. See the setters of the builder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) polling_pause: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            command_timeout: Duration::from_secs(1),
            polling_pause: Duration::from_millis(50),
        }
    }
}

impl Timing {
    /// Returns how long a server remembers that a process polls: long enough that a process which polls again within
    /// four of its pauses is not forgotten in between.
    pub(crate) fn mark(&self) -> Duration {
        self.polling_pause * 4
    }
}

/// The longest wait for a reply, and the longest time-out that may be set.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

impl Timing {
    /// Returns how long a reply may take where replies have recently taken `round_trip`.
    ///
    /// A server sends a reply even if the client no longer waits for it. If every reply were abandoned, the round trip of a slow
    /// server would never be known, and each request would be repeated forever. Twice the round trip leaves room for a reply that
    /// is slower than the others.
    pub(crate) fn reply_within(self, round_trip: Duration) -> Duration {
        let enough = round_trip.saturating_mul(2).min(LONGEST);
        self.command_timeout.max(enough)
    }

    /// Returns how long the reply to an acquire may take. After half of the ttl the reply is useless, because its lease is
    /// refused as too short.
    pub(crate) fn acquire_within(self, round_trip: Duration, ttl: Duration) -> Duration {
        let useful = self.reply_within(round_trip).min(ttl / 2);
        self.command_timeout.max(useful)
    }

    pub(crate) fn check(self) -> Result<(), LockError> {
        let milli = Duration::from_millis(1);
        let bounds = [
            ("connect_timeout", self.connect_timeout, 10 * milli),
            ("command_timeout", self.command_timeout, 10 * milli),
            ("polling_pause", self.polling_pause, milli),
        ];
        for (name, value, least) in bounds {
            if value < least || value > LONGEST {
                return Err(LockError::invalid(format!(
                    "{name} is {value:?}: choose between {least:?} and {LONGEST:?}"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_reply_may_take_long_on_a_slow_network() {
        let timing = Timing::default();
        assert_eq!(timing.reply_within(Duration::ZERO), SECOND);
        assert_eq!(timing.reply_within(SECOND / 2), SECOND);
        assert_eq!(timing.reply_within(SECOND * 3 / 2), SECOND * 3);
        assert_eq!(timing.reply_within(Duration::MAX), LONGEST);
    }

    #[test]
    fn an_acquire_is_awaited_only_while_its_lease_is_useful() {
        let timing = Timing::default();
        assert_eq!(
            timing.acquire_within(SECOND * 3 / 2, SECOND * 10),
            SECOND * 3
        );
        assert_eq!(
            timing.acquire_within(SECOND * 3 / 2, SECOND * 4),
            SECOND * 2
        );
        assert_eq!(timing.acquire_within(SECOND * 3 / 2, SECOND / 10), SECOND);
    }
}
