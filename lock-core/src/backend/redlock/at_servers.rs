//! One lock at each of the servers.
//!
//! A voting round ends with the majority's reply. Requests to the other servers stay in flight, and may acquire the key there later.
//! So each of them is [`UnderWay`] until its reply, or its time-out. The release at a server begins when none is under way any more.
//!
//! For the driver, all servers together are one order, on which there is a reply as soon as each server has replied on the order that
//! carried its requests. Until then a release has an outcome, by a majority, and no order. So the driver repeats it, and each try
//! is sent to those servers only that are not certain yet. Usually the last reply comes before the second try, which then sends
//! nothing.
//!
//! All of it runs on the manager's thread.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::Mutex;

use crate::{
    backend::{
        Backend, Release,
        in_flight::{InFlight, Order},
        owner::Owner,
    },
    engine::reply::ReleaseOutcome,
    failure::Failure,
    runtime::tally::{Open, Tally},
};

/// A lock at all servers, in their order.
pub(super) struct AtServers {
    pub(super) each: Box<[Arc<AtServer>]>,
    /// Whether the release has had an outcome.
    pub(super) is_released: AtomicBool,
}

/// A lock at one of them.
pub(super) struct AtServer {
    /// Its records are those of requests that are over, and had no reply.
    owner: Arc<Owner>,
    under_way: Arc<Tally>,
    /// Whether the server took the key for a request that is over, or may have done so.
    took: AtomicBool,
    is_closed: AtomicBool,
    /// Whether the key is not ours there, and will not be.
    is_free: AtomicBool,
    /// Locked for the whole time of a try.
    tries: Mutex<Tries>,
}

/// What came of the tries of its release at one server.
#[derive(Default)]
struct Tries {
    outcome: Option<ReleaseOutcome>,
    /// Whether one of them was sent and has no reply.
    may_have_done_it: bool,
}

/// A request that may acquire the key at one of the servers.
pub(super) struct UnderWay {
    at: Arc<AtServer>,
    pub(super) in_flight: InFlight,
    _open: Open,
}

impl AtServers {
    /// Returns the records of a lock at this many servers: always as many.
    pub(super) fn of(owner: &Owner, count: usize) -> &Self {
        owner.kept(|| Self {
            each: (0..count)
                .map(|_| AtServer::new(owner.at_one_server()))
                .collect(),
            is_released: AtomicBool::new(false),
        })
    }

    /// The order of all servers together, if there is a reply on it.
    pub(super) fn order(&self) -> Option<Order> {
        let mut each = self.each.iter();
        let are_free = each.all(|at| at.is_free.load(Ordering::Acquire));
        are_free.then_some(Order::LOCAL)
    }
}

impl AtServer {
    fn new(owner: Owner) -> Arc<Self> {
        Arc::new(Self {
            owner: Arc::new(owner),
            under_way: Arc::default(),
            took: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_free: AtomicBool::new(false),
            tries: Mutex::default(),
        })
    }

    pub(super) fn begin(self: &Arc<Self>) -> UnderWay {
        UnderWay {
            at: self.clone(),
            in_flight: InFlight::default(),
            _open: self.under_way.open(),
        }
    }

    /// Whether the server has the key, may have it, or may acquire it.
    pub(super) fn may_hold(&self) -> bool {
        self.took.load(Ordering::Acquire) || self.under_way.count() > 0
    }

    /// Begins the release: no request leaves from now on. Waits for those that have left, until their time-outs at the longest.
    /// Returns whether there is anything to release.
    async fn close(&self) -> bool {
        self.is_closed.store(true, Ordering::Release);
        self.under_way.emptied().await;
        self.may_hold()
    }

    /// Makes a try of the release at this server, unless it is certain there. Returns what the first reply said.
    ///
    /// If the key is not held any more, and an earlier try has no reply, that try deleted it.
    pub(super) async fn release(
        &self,
        node: &impl Backend,
        request: Release,
    ) -> Result<ReleaseOutcome, Failure> {
        // The try before may be in flight, until its time-out at the longest.
        let mut tries = self.tries.lock().await;
        if !self.is_free.load(Ordering::Acquire) && self.close().await {
            let owner = self.owner.clone();
            let answer = node.release(Release { owner, ..request }).await;
            let answered = answer.inspect_err(|failure| {
                let was_sent = !self.owner.released_on.is_empty();
                tries.may_have_done_it |= was_sent && !failure.is_definite();
            })?;
            let outcome = match answered.outcome {
                ReleaseOutcome::NotOurs if tries.may_have_done_it => ReleaseOutcome::Released,
                outcome => outcome,
            };
            tries.outcome.get_or_insert(outcome);
            let is_settled = self.owner.in_flight.note_answer(answered.order);
            self.is_free.store(is_settled, Ordering::Release);
        } else {
            self.is_free.store(true, Ordering::Release);
        }
        Ok(tries.outcome.unwrap_or(ReleaseOutcome::NotOurs))
    }
}

impl UnderWay {
    /// Whether the request may be sent: not after the release has begun.
    pub(super) fn may_leave(&self) -> bool {
        !self.at.is_closed.load(Ordering::Acquire)
    }

    /// Notes the reply, and whether the server took the key.
    pub(super) fn answered(self, order: Order, took: bool) {
        self.in_flight.note_all_answered();
        self.at.took.fetch_or(took, Ordering::AcqRel);
        // It also settles earlier requests on the same connection. Another one that is in flight waits for its own reply.
        if self.at.under_way.count() == 1 {
            self.at.owner.in_flight.note_answer(Some(order));
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.in_flight.is_empty() {
            self.at.owner.in_flight.add(&self.in_flight);
            self.at.took.store(true, Ordering::Release);
        }
    }
}

impl fmt::Debug for AtServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtServers").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{backend::owner::Entry, mode::Mode};

    fn server() -> Arc<AtServer> {
        let owner = Owner::of_entry(Entry {
            number: 1,
            ttl: Duration::ZERO,
            mode: Mode::Exclusive,
        });
        AtServer::new(owner.at_one_server())
    }

    #[tokio::test]
    async fn nothing_is_released_at_a_server_to_which_nothing_left() {
        let server = server();
        drop(server.begin());
        assert!(!server.may_hold() && !server.close().await);
        assert!(!server.begin().may_leave(), "the release has begun");
    }

    #[tokio::test]
    async fn a_release_at_a_server_waits_for_what_is_under_way_there() {
        let server = server();
        let under_way = server.begin();
        under_way.in_flight.note_sent_on(Order::new(1));
        assert!(server.may_hold());
        let closed = tokio::spawn({
            let server = server.clone();
            async move { server.close().await }
        });
        tokio::task::yield_now().await;
        assert!(!closed.is_finished() && !server.begin().may_leave());
        under_way.answered(Order::new(1), true);
        assert!(closed.await.expect("no panic"));
        assert!(server.owner.in_flight.is_empty());
    }

    #[tokio::test]
    async fn the_reply_to_one_request_says_nothing_of_another_one() {
        let (server, first) = (server(), Order::new(1));
        let (refused, lost) = (server.begin(), server.begin());
        refused.in_flight.note_sent_on(first);
        lost.in_flight.note_sent_on(first);
        refused.answered(first, false);
        drop(lost);
        assert!(server.close().await);
        let in_flight = &server.owner.in_flight;
        assert!(!in_flight.is_empty() && in_flight.is_settled_by(first));
        // The next one on that connection is executed after it.
        let next = server.begin();
        next.in_flight.note_sent_on(first);
        next.answered(first, false);
        assert!(in_flight.is_empty() && server.may_hold());
    }
}
