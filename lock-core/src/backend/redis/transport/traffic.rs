//! The state of a connection in use: how many requests are in flight, when replies arrived, and why it ended.

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

#[cfg(feature = "tls")]
use crate::backend::redis::transport::tls;
use crate::moment::Moment;

/// The largest number of requests in flight on one connection. With this many, the server is evidently not replying, so further
/// requests are refused.
const MOST_IN_FLIGHT: usize = 1 << 17;

/// The reason why there is no reply.
#[derive(Clone, Debug)]
pub(crate) enum NoReply {
    /// The connection has ended for this reason.
    Broken(Arc<str>),
    /// The connection has ended in the middle of a reply, for this reason.
    Cut(Arc<str>),
    /// The connection has ended because the two ends do not accept each other.
    Unacceptable(Arc<str>),
    /// The bytes that arrived are not the Redis protocol.
    Nonsense,
    /// Nothing arrived in time.
    Late,
    /// The command never left.
    NotSent,
}

impl NoReply {
    /// Returns the reason for a failed read or write. Only TLS has errors of the kind `InvalidData`, and all its permanent
    /// errors are of that kind.
    #[cfg_attr(
        not(feature = "tls"),
        expect(clippy::needless_pass_by_value, reason = "with TLS it is consumed")
    )]
    pub(super) fn of(error: io::Error) -> Self {
        #[cfg(feature = "tls")]
        let error = tls::explained(error);
        let why = error.to_string().into();
        match error.kind() {
            io::ErrorKind::InvalidData => Self::Unacceptable(why),
            _ => Self::Broken(why),
        }
    }

    /// Returns the reason for lost replies, after which later ones are attributed to the wrong requests.
    pub(crate) fn misplaced() -> Self {
        Self::Broken("a reply has the wrong form, so replies were lost on the way".into())
    }
}

/// The state of one connection.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// The time of the last reply, in nanoseconds of the clock. Zero before the first one.
    replied: AtomicU64,
    /// The number of requests that have been sent, or are about to be, and have no reply.
    in_flight: AtomicUsize,
    /// Set once nothing more is to be sent.
    is_retired: AtomicBool,
    end: OnceLock<NoReply>,
    /// Wakes the connection's watch when the connection is retired or has ended, or its session needs another runtime.
    pub(crate) changed: Notify,
    /// Wakes the requests in flight, so that each checks whether it is late.
    pub(crate) tick: Notify,
    /// The smoothed round-trip time of all connections to the server, in nanoseconds. Zero if not known.
    round_trip: Arc<AtomicU64>,
}

impl Traffic {
    pub(crate) fn new(round_trip: Arc<AtomicU64>) -> Self {
        Self {
            round_trip,
            ..Self::default()
        }
    }

    /// Counts a request that is about to be sent. Returns how many are in flight. `None` means that too many are, or that the
    /// connection is retired.
    ///
    /// A request is counted before it checks whether the connection is retired, and the watch reads the count after retiring
    /// the connection. So either the request is not sent, or the watch waits for it.
    pub(crate) fn begin(&self) -> Option<usize> {
        let before = self.in_flight.fetch_add(1, Ordering::SeqCst);
        if before < MOST_IN_FLIGHT && !self.is_retired.load(Ordering::SeqCst) {
            return Some(before + 1);
        }
        self.note_answered(1);
        None
    }

    /// Notes that this many requests are no longer in flight.
    pub(crate) fn note_answered(&self, count: usize) {
        let before = self.in_flight.fetch_sub(count, Ordering::SeqCst);
        if before == count && self.is_retired.load(Ordering::SeqCst) {
            self.changed.notify_one();
        }
    }

    /// Refuses all further requests. The connection closes when all replies have arrived, or after a command time-out.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Ordering::SeqCst);
        self.changed.notify_one();
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::SeqCst)
    }

    /// Returns `true` if a request may be sent: the connection has neither ended nor been retired.
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_retired() && self.end.get().is_none()
    }

    /// Returns the number of requests in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Notes that a reply arrived.
    pub(crate) fn note_reply(&self, now: Moment) {
        self.replied.fetch_max(now.as_nanos(), Ordering::AcqRel);
    }

    /// Returns the time of the last reply.
    pub(crate) fn last_reply(&self) -> Moment {
        Moment::from_nanos(self.replied.load(Ordering::Acquire))
    }

    /// Notes the round trip of a reply that was in time. Each new measurement has a weight of one eighth, as in TCP.
    pub(crate) fn note_round_trip(&self, took: Duration) {
        let took = nanos(took);
        let after = match self.round_trip.load(Ordering::Relaxed) {
            0 => took,
            before => before - before / 8 + took / 8,
        };
        self.round_trip.store(after, Ordering::Relaxed);
    }

    /// Notes that replies take at least this long, although their callers no longer wait for them. The measurement replaces the
    /// average at once, so that the next callers wait long enough.
    pub(crate) fn note_late_round_trip(&self, took: Duration) {
        self.round_trip.fetch_max(nanos(took), Ordering::Relaxed);
    }

    /// Notes why the connection ended. The first reason counts.
    pub(crate) fn end(&self, why: NoReply) {
        self.end.get_or_init(|| why);
        self.changed.notify_one();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.end.get().is_some()
    }

    /// Returns the reason why the connection ended, if it has.
    pub(crate) fn ended(&self) -> Option<NoReply> {
        self.end.get().cloned()
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_beyond_the_limit_in_flight_are_refused() {
        let traffic = Traffic::default();
        for number in 1..=MOST_IN_FLIGHT {
            assert_eq!(traffic.begin(), Some(number));
        }
        assert_eq!(traffic.begin(), None);
        traffic.note_answered(1);
        assert_eq!(traffic.begin(), Some(MOST_IN_FLIGHT));
    }
}
