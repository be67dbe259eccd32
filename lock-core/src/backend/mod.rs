//! The waist: the interface between the driver and the backends.
//!
//! Every reply comes within a few command time-outs of the store, and that of a renewal within the time that it is given. Else it
//! is [`Failure::NoReply`]: the callers have no timers of their own.
//!
//! The futures of [`Store::acquire`] and [`Store::release`] contain nothing of a runtime. So any task may poll them, on any thread,
//! and they may be moved between tasks. Those of the other requests are polled where the manager's work runs.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use crate::{
    backend::{
        in_flight::{ConnectionId, InFlight, ServerInFlight},
        owner::{Entry, Owner},
        until_certain::CertainRelease,
    },
    engine::reply::{AcquireOutcome, QueueMode, ReleaseOutcome, Renewed},
    failure::Failure,
    fencing::{ClockIndex, KnownTokens},
    inspect::{Health, Sighting},
};

pub(crate) mod grants;
pub(crate) mod holder_label;
pub(crate) mod in_flight;
pub(crate) mod memory;
pub(crate) mod on_executor;
pub(crate) mod owner;
pub(crate) mod owner_token;
pub(crate) mod redacted;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "redis")]
pub(crate) mod redlock;
pub(crate) mod timing;
pub(crate) mod until_certain;

/// The future of a backend's reply.
pub(crate) type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// A reply that is ready at once.
pub(crate) fn at_once<T: Send + 'static>(reply: Result<T, Failure>) -> StoreFuture<T> {
    Box::pin(std::future::ready(reply))
}

/// The reason why a request is refused: either the lock or the request is in permits mode, and the other is not.
pub(crate) const OTHER_MODE: &str =
    "it is held or waited for in another mode: a key is taken with permits everywhere, or nowhere";

/// The most batches of renewals in flight.
pub(crate) const MOST_BATCHES: usize = 64;

pub(crate) trait Store: fmt::Debug + Send + Sync {
    /// Takes the key if it is free, or if it already holds this very token (the reply to an earlier request was lost). Otherwise
    /// joins the key's queue, or checks on its position, as the request says.
    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired>;

    /// Renews leases, all in one message. Never shortens a lease. Never makes a missing key anew, except at some of several servers
    /// while a majority has it, or has lost it with its data too lately to vote for others. Returns one result a request. A request for
    /// fencing tokens comes alone.
    fn renew(
        &self,
        batch: Vec<Renew>,
        within: Duration,
    ) -> StoreFuture<Vec<Result<Renewed, Failure>>>;

    /// Releases the key if it holds this token, and removes the entry in its queue; grants the key to the next waiter. The result
    /// is there as soon as it is known. What is still needed then until the release is certain, the store does by itself.
    fn release(&self, release: CertainRelease) -> StoreFuture<ReleaseOutcome>;

    /// Looks at a key.
    fn inspect(&self, full_key: Arc<str>) -> StoreFuture<Option<Sighting>>;

    /// Finds keys with this prefix that are held, a page at a time. A server looks at about a hundred keys for a page. In memory
    /// all are in one.
    fn list(&self, full_prefix: Arc<str>, from: PagePosition) -> StoreFuture<Page>;

    /// Deletes the result of a run.
    fn forget(&self, full_key: Arc<str>) -> StoreFuture<()>;

    /// Deletes a key, whichever holder it has, and grants it to the next waiter.
    fn force_release(&self, full_key: Arc<str>, known_fencing: u64) -> StoreFuture<()>;

    /// Tries everything that the manager needs from the backend.
    fn check(&self, known_tokens: Arc<KnownTokens>) -> StoreFuture<Health>;

    /// How many fencing clocks there are.
    fn clocks(&self) -> u16 {
        1
    }

    /// The fencing clock from which the tokens of a key come.
    fn clock_of(&self, _full_key: &str) -> ClockIndex {
        0
    }

    /// How long a renewal and its reply take, as measured lately; zero if not known.
    fn round_trip(&self) -> Duration;

    /// How many batches of renewals may be in flight.
    fn most_batches(&self) -> usize {
        MOST_BATCHES
    }
}

/// Where a page of a list begins.
#[derive(Clone, Debug, Default)]
pub(crate) struct PagePosition {
    /// The servers that have been looked at to the end, by their addresses.
    pub(crate) done: Vec<String>,
    /// The position within the next server; `None` at its beginning.
    pub(crate) cursor: Option<Cursor>,
}

/// How far a server's keys have been looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// The server's own number; its meaning is known to the server only.
    pub(crate) number: u64,
    /// Another connection may lead to another process, which has its keys in another order.
    pub(crate) connection: ConnectionId,
}

#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// By full keys.
    pub(crate) locks: Vec<(String, Sighting)>,
    /// Where the next page begins, if there is one.
    pub(crate) next: Option<PagePosition>,
}

#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    /// Its record of connections is written before the first byte leaves on each of them.
    pub(crate) owner: Arc<Owner>,
    pub(crate) ttl: Duration,
    /// The largest fencing token of the key's clock that this process knows: the new ones are larger.
    pub(crate) known_fencing: u64,
    /// How many fencing tokens are wanted.
    pub(crate) tokens: u32,
    pub(crate) queue_mode: QueueMode,
    /// The ttl of its entry, if a message for the entry may come.
    pub(crate) queued_ttl: Option<Duration>,
    /// The connection with the release of this key in flight, behind which this request is to be executed.
    pub(crate) behind: Option<ConnectionId>,
}

impl Acquire {
    /// Its entry, as it is sent. A free lock is taken without one.
    pub(crate) fn entry(&self) -> Entry {
        let join = |ttl| self.owner.join(ttl);
        self.queued_ttl.map_or_else(|| self.owner.entry(), join)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Renew {
    /// At one of several servers, the renewal may restore the key: its record of connections is that of the acquire.
    pub(crate) owner: Arc<Owner>,
    pub(crate) ttl: Duration,
    /// As with an acquire.
    pub(crate) known_fencing: u64,
    /// How many fencing tokens are wanted in advance, for tasks to which an exclusive lease is handed without a message. Mostly zero.
    pub(crate) tokens: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) owner: Arc<Owner>,
    /// Instead of deleting the key, lets it expire after this long.
    pub(crate) keep: Option<Duration>,
    /// The result of a run, stored in the same step if the key still holds the owner token.
    pub(crate) result: Option<RunResult>,
    pub(crate) known_fencing: u64,
    /// Whether the entry may be in the queue.
    pub(crate) may_be_queued: bool,
    /// At one of several servers: what is in flight to it.
    pub(crate) at_server: Option<Arc<ServerInFlight>>,
}

impl Renew {
    /// A renewal that takes no tokens.
    pub(crate) fn without_tokens(owner: &Arc<Owner>, ttl: Duration) -> Self {
        Self {
            owner: owner.clone(),
            ttl,
            known_fencing: 0,
            tokens: 0,
        }
    }
}

impl Release {
    /// The connections that the tries left on, each noted before the first byte leaves.
    pub(crate) fn in_flight(&self) -> &InFlight {
        let at_server = self.at_server.as_ref();
        at_server.map_or(&self.owner.released_on, |server| &server.released_on)
    }

    /// The connections that the acquire left on.
    pub(crate) fn acquire_in_flight(&self) -> &InFlight {
        let at_server = self.at_server.as_ref();
        at_server.map_or(&self.owner.in_flight, |server| &server.in_flight)
    }
}

/// The result of a run, stored for later callers.
#[derive(Clone)]
pub struct RunResult {
    pub(crate) bytes: Arc<[u8]>,
    /// For how long it is kept.
    pub(crate) keep: Duration,
}

/// The bytes are the user's, and are shown nowhere.
impl fmt::Debug for RunResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunResult")
            .field("length", &self.bytes.len())
            .field("keep", &self.keep)
            .finish()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Acquired {
    pub(crate) outcome: AcquireOutcome,
    pub(crate) connection: ConnectionId,
}

impl Owner {
    /// Notes what the reply to an acquire says of its copies. Returns whether all of them were executed or never will be.
    pub(crate) fn note_reply(&self, result: &Result<Acquired, Failure>) -> bool {
        let is_settled =
            matches!(result, Ok(acquired) if self.in_flight.is_settled_by(acquired.connection));
        if is_settled {
            self.in_flight.note_all_answered();
        }
        is_settled
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Released {
    pub(crate) outcome: ReleaseOutcome,
    pub(crate) connection: ConnectionId,
}
