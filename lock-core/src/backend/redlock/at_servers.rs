//! The state of one lock on each of the servers.
//!
//! A voting round ends with the majority's reply. Requests to the other servers stay in flight, and may be granted the key
//! there later. So the requests about a lock on a server take turns, which end with their replies or time-outs, and the release
//! on a server has the last turn.
//!
//! For the driver, all servers together are one order. There is a reply on it as soon as each server has replied on the order
//! that carried its requests. Until then, a release has the outcome of a majority, but no order. So the driver repeats it, and
//! each try is sent only to those servers that are not certain yet. Usually the last reply arrives before the second try, which
//! then sends nothing. A server that refuses for good counts as certain after a few refusals: further attempts are useless there,
//! and the key expires. A server that does not answer is tried until the driver gives up.
//!
//! All of this runs on the manager's thread.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::{Mutex, MutexGuard};

use crate::{
    backend::{
        Backend, Release,
        in_flight::{InFlight, Order},
        owner::Owner,
        redlock::restart_quarantine::CLOCK,
    },
    engine::reply::ReleaseOutcome,
    failure::Failure,
};

/// After this many replies from a server that refuse the release for good, further attempts are useless there.
const MOST_REFUSALS: u32 = 3;

/// A lock on all servers, in the order of the servers.
pub(super) struct AtServers {
    pub(super) each: Box<[Arc<AtServer>]>,
    /// `true` if another process has asked for the lock in the meantime.
    pub(super) is_wanted: AtomicBool,
    /// `true` if its release has had an outcome.
    pub(super) is_released: AtomicBool,
}

/// A lock on one of the servers.
pub(super) struct AtServer {
    /// `true` if the release has begun.
    is_closed: AtomicBool,
    /// Locked for a turn.
    known: Mutex<KnownAtServer>,
}

/// The known state of a lock on one of the servers.
pub(super) struct KnownAtServer {
    /// Its records are those of requests that got no reply.
    owner: Arc<Owner>,
    /// `true` if the server took the key.
    took: bool,
    /// `true` if the release is over, because the key is not ours there and can no longer become ours, or the server
    /// refuses for good.
    is_over: bool,
    /// The first outcome of its release.
    outcome: Option<Result<ReleaseOutcome, Failure>>,
    /// The number of attempts at the release that were refused for good.
    refused: u32,
    /// `true` if an attempt at the release was sent, got no reply, and may have been executed.
    may_have_done_it: bool,
}

impl AtServers {
    /// Returns the records of a lock on this many servers, which must be the same number in every call.
    pub(super) fn of(owner: &Owner, count: usize) -> &Self {
        owner.kept(|| Self {
            each: (0..count).map(|_| AtServer::new(owner)).collect(),
            is_wanted: AtomicBool::new(false),
            is_released: AtomicBool::new(false),
        })
    }

    /// Returns `true` if some server has the key, may have it, or may be granted it.
    pub(super) fn may_hold(&self) -> bool {
        // Each request that is in flight, or about to be sent, has a clone.
        let is_asked = |at: &Arc<AtServer>| Arc::strong_count(at) > 1;
        let may_hold = |at: &Arc<AtServer>| at.known.try_lock().is_ok_and(|known| known.may_hold());
        self.each.iter().any(|at| is_asked(at) || may_hold(at))
    }

    /// Returns the order of all servers together, if there is a reply on it.
    pub(super) fn order(&self) -> Option<Order> {
        let is_over = |at: &Arc<AtServer>| at.known.try_lock().is_ok_and(|known| known.is_over);
        self.each.iter().all(is_over).then_some(Order::LOCAL)
    }
}

impl AtServer {
    fn new(owner: &Owner) -> Arc<Self> {
        Arc::new(Self {
            is_closed: AtomicBool::new(false),
            known: Mutex::new(KnownAtServer {
                owner: Arc::new(owner.at_one_server()),
                took: false,
                is_over: false,
                outcome: None,
                refused: 0,
                may_have_done_it: false,
            }),
        })
    }

    /// Waits for the turn of a request that may be granted the key. Fails if the release has begun, so that the request must
    /// not be sent.
    pub(super) async fn turn(&self) -> Result<MutexGuard<'_, KnownAtServer>, Failure> {
        let mut known = self.known.lock().await;
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Failure::no_reply(
                "this request was released before it was sent",
            ));
        }
        // An earlier request that got no reply may have taken the key. A later refusal settles that it no longer runs, but not
        // whether it took the key.
        known.took |= !known.owner.in_flight.is_empty();
        Ok(known)
    }

    /// Attempts the release on this server, unless it has already ended there. Returns the outcome of the first reply.
    ///
    /// If the key is no longer held, and an earlier attempt got no reply, that attempt deleted it, unless the lease ran out in the
    /// meantime.
    pub(super) async fn release(
        &self,
        node: &impl Backend,
        request: Release,
    ) -> Result<ReleaseOutcome, Failure> {
        // From now on no request is sent. One that has been sent ends with its time-out at the latest.
        self.is_closed.store(true, Ordering::Release);
        let mut known = self.known.lock().await;
        known.is_over |= !known.may_hold();
        if known.is_over {
            return known.outcome.clone().unwrap_or(Ok(ReleaseOutcome::NotOurs));
        }
        let (owner, valid_until) = (known.owner.clone(), request.valid_until);
        let answer = node.release(Release { owner, ..request }).await;
        let answered = answer.inspect_err(|failure| known.note_failure(failure))?;
        let was_deleted = known.may_have_done_it && CLOCK.now() < valid_until;
        let outcome = match answered.outcome {
            ReleaseOutcome::NotOurs if was_deleted => ReleaseOutcome::Released,
            outcome => outcome,
        };
        known.is_over = known.owner.in_flight.note_answer(answered.order);
        known.outcome.get_or_insert(Ok(outcome)).clone()
    }
}

impl KnownAtServer {
    /// Returns the orders of the requests that may be granted the key.
    pub(super) fn in_flight(&self) -> &InFlight {
        &self.owner.in_flight
    }

    /// Records the reply to such a request, and whether the server took the key. It also settles earlier requests on the same
    /// connection.
    pub(super) fn note_answer(&mut self, order: Order, took: bool) {
        self.owner.in_flight.note_answer(Some(order));
        self.took |= took;
    }

    /// Records that an attempt at the release failed. A server that does not answer is asked again and again, but not
    /// one that refuses.
    fn note_failure(&mut self, failure: &Failure) {
        let was_sent = !self.owner.released_on.is_empty();
        self.may_have_done_it |= was_sent && !failure.is_definite();
        self.refused += u32::from(!failure.is_transient());
        if self.refused >= MOST_REFUSALS {
            self.is_over = true;
            self.outcome.get_or_insert(Err(failure.clone()));
        }
    }

    fn may_hold(&self) -> bool {
        self.took || !self.owner.in_flight.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Waker},
        time::Duration,
    };

    use super::*;
    use crate::{
        backend::{memory::MemoryBackend, owner::Entry},
        mode::Mode,
        moment::Moment,
        runtime::clock::Clock,
    };

    fn server() -> (Arc<AtServer>, MemoryBackend, Release) {
        let owner = Owner::of_entry(Entry {
            number: 1,
            ttl: Duration::ZERO,
            mode: Mode::Exclusive,
        });
        let server = AtServer::new(&owner);
        let release = Release {
            owner,
            keep: None,
            result: None,
            known_fencing: 0,
            may_be_queued: false,
            valid_until: Moment::NEVER,
        };
        (
            server,
            MemoryBackend::new(Clock::tokio(), Arc::default()),
            release,
        )
    }

    #[tokio::test]
    async fn nothing_is_released_on_a_server_to_which_nothing_was_sent() {
        let (server, node, release) = server();
        drop(server.turn().await);
        let released = server.release(&node, release).await;
        assert!(matches!(released, Ok(ReleaseOutcome::NotOurs)));
        assert!(server.turn().await.is_err(), "the release has begun");
        let known = server.known.lock().await;
        assert!(known.is_over && known.owner.released_on.is_empty());
    }

    #[tokio::test]
    async fn a_release_on_a_server_waits_for_the_request_in_flight_there() {
        let (server, node, release) = server();
        let mut known = server.turn().await.expect("no release");
        known.in_flight().note_sent_on(Order::new(2));
        let mut released = pin!(server.release(&node, release));
        let mut next = pin!(server.turn());
        let mut task = Context::from_waker(Waker::noop());
        assert!(released.as_mut().poll(&mut task).is_pending());
        assert!(next.as_mut().poll(&mut task).is_pending());
        known.note_answer(Order::new(2), true);
        drop(known);
        assert!(released.await.is_ok());
        assert!(
            next.await.is_err(),
            "the request was not sent before the release"
        );
        let known = server.known.lock().await;
        assert!(known.is_over && !known.owner.released_on.is_empty());
    }

    #[tokio::test]
    async fn a_key_that_is_gone_was_deleted_by_a_try_without_a_reply_only_while_the_lease_was_valid()
     {
        for (valid_until, outcome) in [
            (Moment::NEVER, ReleaseOutcome::Released),
            (CLOCK.now(), ReleaseOutcome::NotOurs),
        ] {
            let (server, node, mut release) = server();
            let mut known = server.turn().await.expect("no release");
            known.note_answer(Order::new(2), true);
            known.owner.released_on.note_sent_on(Order::new(2));
            known.note_failure(&Failure::no_reply("late"));
            drop(known);
            release.valid_until = valid_until;
            let released = server.release(&node, release).await;
            assert_eq!(released.expect("a reply"), outcome);
        }
    }

    #[tokio::test]
    async fn a_server_that_refuses_three_times_is_not_asked_again() {
        let (server, node, release) = server();
        let mut known = server.turn().await.expect("no release");
        known.note_answer(Order::new(2), true);
        for (failure, is_over) in [
            (Failure::no_reply("late"), false),
            (Failure::refused("no"), false),
            (Failure::not_now("away"), false),
            (Failure::refused("no"), false),
            (Failure::refused("no"), true),
        ] {
            known.note_failure(&failure);
            assert_eq!(known.is_over, is_over, "{failure:?}");
        }
        drop(known);
        let released = server.release(&node, release).await;
        assert!(matches!(released, Err(Failure::Refused(_))));
    }

    #[tokio::test]
    async fn a_request_without_a_reply_is_settled_by_the_next_one_on_its_connection() {
        let (server, _, _) = server();
        for (order, is_settled) in [(3, false), (2, true)] {
            let known = server.turn().await.expect("no release");
            known.in_flight().note_sent_on(Order::new(2));
            drop(known);
            let mut known = server.turn().await.expect("no release");
            assert!(known.may_hold());
            known.note_answer(Order::new(order), false);
            assert_eq!(known.in_flight().is_empty(), is_settled, "{order}");
            assert!(known.may_hold(), "the request may have taken the key");
        }
    }
}
