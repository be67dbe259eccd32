//! The waist: the interface between the driver and every backend. A backend keeps locks, in memory or on servers.
//!
//! Every reply arrives within a few command time-outs of the backend, and that of a renewal within the time that it is given.
//! Otherwise it is [`Failure::NoReply`], because the driver has no timers for replies.
//!
//! The futures of [`Backend::acquire`] and [`Backend::release`] do not depend on a runtime, so any task may poll them, on any
//! thread, and they may be moved between tasks. Those of the other requests are polled where the manager's work runs.
//!
//! A backend calls the driver in one way only: by the callback of [`grants`].

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use crate::{
    backend::{
        in_flight::Order,
        owner::{Entry, Owner},
    },
    engine::reply::{AcquireOutcome, QueueMode, ReleaseOutcome, Renewed},
    failure::Failure,
    fencing::{ClockIndex, KnownTokens},
    inspect::{Health, Sighting},
    moment::Moment,
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

/// The future of a backend's reply.
pub(crate) type Reply<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// Returns a reply that is ready.
pub(crate) fn at_once<T: Send + 'static>(reply: Result<T, Failure>) -> Reply<T> {
    Box::pin(std::future::ready(reply))
}

/// The reason for refusing a request if either the lock or the request is in permits mode, and the other is not.
pub(crate) const OTHER_MODE: &str =
    "it is held or waited for in another mode: lock a key with permits everywhere, or nowhere";

/// The maximum number of batches of renewals in flight.
pub(crate) const MOST_BATCHES: usize = 64;

/// Keeps locks.
pub(crate) trait Backend: Operate {
    /// Acquires the key if it is free, or if it already holds this very token, because the reply to an earlier request was
    /// lost. Otherwise joins the key's queue, or checks its position there, as the request says.
    fn acquire(&self, request: Acquire) -> Reply<Answered<AcquireOutcome>>;

    /// Renews leases, all in one message. Never shortens a lease. Never recreates a missing key, except, with several
    /// servers, on some of them while a majority has it, or has lost it with its data too recently to vote for others.
    /// Returns one result for each request. A request for fencing tokens is sent alone, and only if
    /// [`Traits::prefetches`].
    fn renew(&self, batch: Vec<Renew>, within: Duration) -> Reply<Vec<Result<Renewed, Failure>>>;

    /// Tries once to release the key if it holds this token, to remove its entry from the queue, and to grant the key to the next
    /// waiter. The driver repeats the release until it is certain.
    fn release(&self, request: Release) -> Reply<Answered<ReleaseOutcome>>;

    /// Returns the properties that the driver must know.
    fn traits(&self) -> Traits;
}

/// The requests of operators.
pub(crate) trait Operate: fmt::Debug + Send + Sync {
    /// Returns what the backend knows about a key.
    fn inspect(&self, full_key: Arc<str>) -> Reply<Option<Sighting>>;

    /// Finds keys with this prefix that are held, a page at a time. For one page, a server examines about a hundred keys. In
    /// memory, all keys are in one page.
    fn list(&self, full_prefix: Arc<str>, from: PagePosition) -> Reply<Page>;

    /// Deletes the result of a run.
    fn forget(&self, full_key: Arc<str>) -> Reply<()>;

    /// Deletes a key, whoever holds it, and grants it to the next waiter.
    fn force_release(&self, full_key: Arc<str>, known_fencing: u64) -> Reply<()>;

    /// Tries out everything that the manager needs from the backend.
    fn check(&self, known_tokens: Arc<KnownTokens>) -> Reply<Health>;
}

/// The properties of a backend. The first three never change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    /// The reason why locks are exclusive only, if they are.
    pub(crate) only_exclusive: Option<&'static str>,
    /// The number of fencing clocks.
    pub(crate) clocks: u16,
    /// Returns the fencing clock from which the tokens of a full key come.
    pub(crate) clock_of: fn(&str) -> ClockIndex,
    /// The maximum number of batches of renewals in flight.
    pub(crate) batches: usize,
    /// `true` if a renewal prefetches fencing tokens.
    pub(crate) prefetches: bool,
    /// How long a renewal and its reply take, as measured recently; zero if unknown.
    pub(crate) round_trip: Duration,
}

impl Default for Traits {
    fn default() -> Self {
        Self {
            only_exclusive: None,
            clocks: 1,
            clock_of: |_| 0,
            batches: MOST_BATCHES,
            prefetches: true,
            round_trip: Duration::ZERO,
        }
    }
}

/// The answer to a request, and the order in which the request was executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered<T> {
    pub(crate) outcome: T,
    /// Everything that was sent earlier on this order was executed, or never will be. `None` if that is not known for any
    /// order, because only a majority of several servers has replied.
    pub(crate) order: Option<Order>,
}

/// The position at which a page of a list begins.
#[derive(Clone, Debug, Default)]
pub(crate) struct PagePosition {
    /// The servers that have been read to the end, by their addresses.
    pub(crate) done: Vec<String>,
    /// The position within the next server; `None` at its beginning.
    pub(crate) cursor: Option<Cursor>,
}

/// The position within a server's keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// The server's own number, whose meaning only the server knows.
    pub(crate) number: u64,
    /// Another connection may lead to another process, which has its keys in another order.
    pub(crate) connection: Order,
}

#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// By full keys.
    pub(crate) locks: Vec<(String, Sighting)>,
    /// The position of the next page, if there is one.
    pub(crate) next: Option<PagePosition>,
}

#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    /// The owner of the request. A connection is recorded there before the first byte of the request leaves on it.
    pub(crate) owner: Arc<Owner>,
    pub(crate) ttl: Duration,
    /// The largest fencing token of the key's clock that this process knows. The new ones are larger.
    pub(crate) known_fencing: u64,
    /// The number of fencing tokens that are wanted.
    pub(crate) tokens: u32,
    pub(crate) queue_mode: QueueMode,
    /// The ttl of its entry, if a message for the entry may arrive.
    pub(crate) queued_ttl: Option<Duration>,
    /// The order on which a release of this key is in flight, if this request must be executed after it.
    pub(crate) after: Option<Order>,
}

impl Acquire {
    /// Returns its entry, as it is sent. A free lock is taken without one.
    pub(crate) fn entry(&self) -> Entry {
        let join = |ttl| self.owner.join(ttl);
        self.queued_ttl.map_or_else(|| self.owner.entry(), join)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Renew {
    /// The owner of the lease. On one of several servers, the renewal may restore the key, so its record of connections is that
    /// of the acquire.
    pub(crate) owner: Arc<Owner>,
    pub(crate) ttl: Duration,
    /// The largest fencing token of the key's clock that this process knows. The new ones are larger.
    pub(crate) known_fencing: u64,
    /// The number of fencing tokens wanted in advance, for tasks to which an exclusive lease is handed over without a message.
    /// Usually zero.
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
    /// `true` if the entry may be in the queue.
    pub(crate) may_be_queued: bool,
    /// When the lease ends. If one of several servers does not have the key after that, this does not show that the server
    /// executed an earlier try.
    pub(crate) valid_until: Moment,
}

impl Renew {
    /// Returns a renewal that takes no tokens.
    pub(crate) fn without_tokens(owner: &Arc<Owner>, ttl: Duration) -> Self {
        Self {
            owner: owner.clone(),
            ttl,
            known_fencing: 0,
            tokens: 0,
        }
    }
}

/// The result of a run, stored for later callers.
#[derive(Clone)]
pub struct RunResult {
    pub(crate) bytes: Arc<[u8]>,
    /// How long the result is kept.
    pub(crate) keep: Duration,
}

/// The bytes are the user's, and are never shown.
impl fmt::Debug for RunResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunResult")
            .field("length", &self.bytes.len())
            .field("keep", &self.keep)
            .finish()
    }
}
