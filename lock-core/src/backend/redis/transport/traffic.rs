//! What is visible of a connection outside the crate `redis`: when bytes last came, how many requests are in flight, and why it
//! ended.
//!
//! A connection through a client of the user's shows less: its bytes are not seen. It is watched by PING alone, and there is no
//! bound on what its server may send.

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::{moment::Moment, runtime::clock::Clock};

const CLOCK: Clock = Clock::Boot;

/// How many requests may be in flight on one connection. With this many, the server evidently does not reply, so further requests
/// are refused.
const MOST_IN_FLIGHT: usize = 1 << 17;

/// How many bytes may come without a complete reply. The longest expected reply is the map of a cluster in which each slot is a
/// range of its own, and takes 8 MiB at most. The rest is for replies to requests that were dropped: a thousand results.
const MOST_WITHOUT_REPLY: usize = (1 << 23) + (1 << 10) * MOST_EACH;

/// What each request in flight adds to that bound: its reply may be complete although its task has not run yet. A result of the
/// largest size (64 KiB), and what is around it.
const MOST_EACH: usize = (1 << 16) + (1 << 12);

/// Why there is no reply.
#[derive(Clone, Debug)]
pub(crate) enum NoReply {
    /// The connection has ended, and why.
    Broken(Arc<str>),
    /// It has ended because the two ends do not accept each other.
    Unacceptable(Arc<str>),
    /// The bytes that came are not the Redis protocol.
    Nonsense,
    /// Nothing came in time.
    Late,
    /// The command never left.
    NotSent,
}

impl NoReply {
    /// The reason after reading or writing failed. Only TLS has errors of the kind `InvalidData`, and all its permanent errors are
    /// of that kind.
    pub(crate) fn of(error: &io::Error) -> Self {
        let why = error.to_string().into();
        match error.kind() {
            io::ErrorKind::InvalidData => Self::Unacceptable(why),
            _ => Self::Broken(why),
        }
    }
}

/// What is visible of one connection.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// When bytes last came, in nanoseconds of the clock. Zero before the first ones.
    arrived: AtomicU64,
    /// How many messages have come.
    messages: AtomicU64,
    /// Since when there has always been a request in flight, or silence counts without one.
    waiting_since: AtomicU64,
    in_flight: AtomicUsize,
    /// Whether silence counts also while no request is in flight.
    is_always_watched: AtomicBool,
    /// Set once nothing more is to be sent.
    is_retired: AtomicBool,
    /// Wakes the driver once the connection is retired, and then once no request is in flight any more.
    pub(crate) retired: Notify,
    /// How many bytes have come since the last reply that is known to be complete.
    without_reply: AtomicUsize,
    /// Whether a reply was late since the driver's last tick.
    was_late: AtomicBool,
    /// How many time-outs put the place of the replies in doubt: one that is lost shifts all that follow.
    doubts: AtomicU64,
    /// How many of them a reply to a later PING has settled.
    settled: AtomicU64,
    end: OnceLock<NoReply>,
    /// Wakes the requests in flight, so that each checks whether it is late.
    pub(crate) tick: Notify,
}

impl Traffic {
    /// Counts a request that is about to leave, until the result is dropped. `None`: too many are in flight, or the connection is
    /// retired.
    ///
    /// A request is counted before it looks, and the driver looks at the count after the connection was retired. So either the request
    /// is not sent, or the driver waits for it.
    pub(crate) fn begin(&self, now: Moment) -> Option<RequestInFlight<'_>> {
        let before = self.in_flight.fetch_add(1, Ordering::SeqCst);
        let counted = RequestInFlight(self);
        if before == 0 {
            self.waiting_since.store(now.as_nanos(), Ordering::Release);
        }
        (before < MOST_IN_FLIGHT && !self.is_retired.load(Ordering::SeqCst)).then_some(counted)
    }

    /// Lets no further request begin. The connection closes when all replies have come, or after the patience of its driver.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Ordering::SeqCst);
        self.retired.notify_one();
    }

    /// Whether a request may be sent: the connection has neither ended nor been retired.
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_retired.load(Ordering::SeqCst) && self.end.get().is_none()
    }

    /// How many requests are in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Notes how many bytes came.
    ///
    /// # Errors
    ///
    /// If they are more than any reply has. A hostile server may announce a reply of any length, which must not be stored.
    pub(crate) fn note_received(&self, count: usize) -> io::Result<()> {
        self.note_bytes();
        let without_reply = self.without_reply.fetch_add(count, Ordering::AcqRel) + count;
        let in_flight = self.in_flight.load(Ordering::Acquire);
        if without_reply <= MOST_WITHOUT_REPLY.saturating_add(in_flight.saturating_mul(MOST_EACH)) {
            return Ok(());
        }
        let reason = "the server sent more than any reply has";
        self.end(NoReply::Nonsense);
        Err(io::Error::other(reason))
    }

    /// Notes that the server has sent something. On a connection that a user's client opened, only complete replies are noticed.
    pub(crate) fn note_bytes(&self) {
        self.arrived
            .fetch_max(CLOCK.now().as_nanos(), Ordering::AcqRel);
    }

    /// Notes a reply or a message that is complete.
    pub(crate) fn note_complete(&self) {
        self.without_reply.store(0, Ordering::Release);
    }

    /// Notes a message that is complete.
    pub(crate) fn note_message(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.note_bytes();
        self.note_complete();
    }

    /// How many messages have come.
    pub(crate) fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// When bytes last came. On a connection that a user's client opened: when a reply last did.
    pub(crate) fn last_bytes(&self) -> Moment {
        Moment::from_nanos(self.arrived.load(Ordering::Acquire))
    }

    /// Puts the place of all further replies in doubt. Returns the number of doubts so far.
    pub(crate) fn doubt(&self) -> u64 {
        self.doubts.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Notes that the replies are in their places as far as the first `doubts` doubts are concerned.
    pub(crate) fn settle(&self, doubts: u64) {
        self.settled.fetch_max(doubts, Ordering::SeqCst);
    }

    /// How many doubts there are, if any of them is not settled.
    pub(crate) fn open_doubts(&self) -> Option<u64> {
        let settled = self.settled.load(Ordering::SeqCst);
        let doubts = self.doubts.load(Ordering::SeqCst);
        (doubts > settled).then_some(doubts)
    }

    /// Whether the replies are in their places as far as the first `doubts` doubts are concerned.
    pub(crate) fn are_settled(&self, doubts: u64) -> bool {
        self.settled.load(Ordering::SeqCst) >= doubts
    }

    /// Notes that a request was given up.
    pub(crate) fn note_late(&self) {
        self.doubt();
        self.was_late.store(true, Ordering::Release);
    }

    /// Whether a reply was late, or nothing has come for this long, with a request in flight all the time.
    pub(crate) fn is_silent(&self, patience: Duration) -> bool {
        if self.was_late.swap(false, Ordering::AcqRel) {
            return true;
        }
        let waiting_since = self.waiting_since.load(Ordering::Acquire);
        let since = self.arrived.load(Ordering::Acquire).max(waiting_since);
        let silence = Duration::from_nanos(CLOCK.now().as_nanos().saturating_sub(since));
        let is_watched = self.in_flight() > 0 || self.is_always_watched.load(Ordering::Acquire);
        is_watched && silence >= patience
    }

    /// Makes silence count also while no request is in flight.
    pub(crate) fn always_notice_silence(&self) {
        let now = CLOCK.now().as_nanos();
        self.waiting_since.store(now, Ordering::Release);
        self.is_always_watched.store(true, Ordering::Release);
    }

    /// Notes why the connection ended; the first reason counts.
    pub(crate) fn end(&self, why: NoReply) {
        self.end.get_or_init(|| why);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.end.get().is_some()
    }

    /// Why the connection ended, if it has.
    pub(crate) fn ended(&self) -> Option<NoReply> {
        self.end.get().cloned()
    }
}

/// A request that is counted as in flight.
#[derive(Debug)]
pub(crate) struct RequestInFlight<'a>(&'a Traffic);

impl Drop for RequestInFlight<'_> {
    fn drop(&mut self) {
        let before = self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
        if before == 1 && self.0.is_retired.load(Ordering::SeqCst) {
            self.0.retired.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_bounded_by_what_is_asked_for() {
        let traffic = Traffic::default();
        traffic
            .note_received(MOST_WITHOUT_REPLY)
            .expect("a long reply");
        assert!(traffic.note_received(1).is_err());
        assert!(matches!(traffic.ended(), Some(NoReply::Nonsense)));
        let traffic = Traffic::default();
        let _counted = traffic.begin(CLOCK.now()).expect("the first one");
        let most = MOST_WITHOUT_REPLY + MOST_EACH;
        traffic.note_received(most).expect("a reply and a long one");
        traffic.note_complete();
        traffic.note_received(most).expect("the next two");
        assert!(traffic.note_received(1).is_err());
    }

    #[test]
    fn more_requests_than_a_server_can_be_sent_are_refused() {
        let traffic = Traffic::default();
        let counted: Vec<_> = (0..MOST_IN_FLIGHT)
            .map(|_| traffic.begin(CLOCK.now()).expect("room"))
            .collect();
        assert!(traffic.begin(CLOCK.now()).is_none());
        drop(counted);
        assert!(traffic.begin(CLOCK.now()).is_some());
    }
}
