//! The port: the interface between the runtime and the place where locks are kept.
//!
//! Every reply comes within the time given in the request, or it is [`Failure::NoReply`]: the callers have no timers of their own.
//!
//! The futures of [`Store::acquire`] and [`Store::release`] contain nothing of a runtime. So any task may poll them, on any thread,
//! and they may be moved between tasks. Those of the other requests are polled where the manager's work runs.

use std::{
    error::Error, fmt, future::Future, num::NonZeroU64, pin::Pin, sync::Arc, time::Duration,
};

use crate::{
    fencing::FencingBlock,
    inspect::{Health, Sighting},
    mode::Mode,
    runtime::{
        clock::{Clock, Moment},
        executor::Executor,
        tally::{Open, Tally},
    },
    store::{
        in_flight::{ConnectionId, InFlight},
        known_tokens::{ClockIndex, KnownTokens},
        owner_token::OwnerToken,
    },
};

pub(crate) mod grants;
pub(crate) mod holder_label;
pub(crate) mod in_flight;
pub(crate) mod known_tokens;
pub(crate) mod memory;
pub(crate) mod owner;
pub(crate) mod owner_token;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "redis")]
pub(crate) mod redlock;
pub(crate) mod timing;
#[cfg(any(feature = "redis", feature = "testing"))]
pub(crate) mod until_certain;

/// The future of a backend's reply.
pub(crate) type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// The failure of a request that outlives its runtime.
pub(crate) const ENDED: &str = "the runtime that the request ran on has ended";

/// The reason why a request is refused: either the lock or the request is in permits mode, and the other is not.
pub(crate) const OTHER_MODE: &str =
    "it is held or waited for in another mode: a key is taken with permits everywhere, or nowhere";

pub(crate) trait Store: fmt::Debug + Send + Sync {
    /// Takes the key if it is free, or if it already holds this very token (the reply to an earlier request was lost). Otherwise
    /// joins the key's queue, or checks on its position, as the request says.
    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired>;

    /// Renews leases, all in one message. Never shortens a lease. Never makes a missing key anew, except at a minority of several
    /// servers while a majority has it. Returns one result a request. A request for fencing tokens comes alone.
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

    /// Finds keys with this prefix that are held, a page at a time: not more than about a hundred.
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

    /// How long a request and its reply take, as measured lately; zero if not known.
    fn round_trip(&self) -> Duration;
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
    pub(crate) full_key: Arc<str>,
    pub(crate) token: OwnerToken,
    pub(crate) ttl: Duration,
    /// The largest fencing token of the key's clock that this process knows: the new ones are larger.
    pub(crate) known_fencing: u64,
    /// How many fencing tokens are wanted.
    pub(crate) tokens: u32,
    pub(crate) queue_mode: QueueMode,
    /// Its entry in the queue.
    pub(crate) entry: Entry,
    /// The connection with the release of this key in flight, behind which this request is to be executed.
    pub(crate) behind: Option<ConnectionId>,
    /// Where the backend notes each connection that the request leaves on, before the first byte is sent.
    pub(crate) in_flight: Arc<InFlight>,
}

/// Names one entry for a key inside a manager; never zero, never reused, and below 2^53.
pub(crate) type EntryNumber = u64;

/// An entry in the queue of a backend, and among the holders of a lock that is not exclusive. It stays the same as long as requests
/// use its owner token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The number by which a grant names the entry.
    pub(crate) number: EntryNumber,
    /// The ttl of the lease that a grant makes.
    pub(crate) ttl: Duration,
    pub(crate) mode: Mode,
}

/// What an acquire does about a lock that is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueMode {
    /// Nothing.
    DoNotQueue,
    /// Joins the queue, for the first time with this entry.
    JoinQueue,
    /// Checks its position in the queue: the one given here, if the server gave one.
    CheckPosition(QueuePosition),
}

/// A position in the queue of a backend; none is known before the first check.
pub(crate) type QueuePosition = Option<NonZeroU64>;

#[derive(Clone, Debug)]
pub(crate) struct Acquired {
    pub(crate) outcome: AcquireOutcome,
    pub(crate) connection: ConnectionId,
}

#[derive(Clone, Debug)]
pub(crate) enum AcquireOutcome {
    Granted(Grant),
    Busy(Busy),
    /// For a request to run a body once: the result of an earlier run. The request has neither the lock nor an entry in the queue.
    Done(Arc<[u8]>),
    /// The request is to be undone: the key may have this owner token, which must not be used for another request. The next
    /// request uses another one, at once.
    Undo,
}

/// What a request was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) tokens: FencingBlock,
    /// The number of the permit, of a lock that has permits.
    pub(crate) permit: Option<u16>,
    /// Of a share: whether an exclusive request waits, so that no further task is to be admitted.
    pub(crate) is_contended: bool,
    /// Of a share: whether others are to be granted the same phase. A renewal grants it to the next ones.
    pub(crate) has_more: bool,
}

impl From<FencingBlock> for Grant {
    /// Makes the grant of an exclusive lock.
    fn from(tokens: FencingBlock) -> Self {
        Self {
            tokens,
            permit: None,
            is_contended: false,
            has_more: false,
        }
    }
}

/// A grant that came by a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PushedGrant {
    pub(crate) grant: Grant,
    /// Larger than the stamp of every reply that was sent before it.
    pub(crate) stamp: u64,
}

/// Another holder has the lock.
#[derive(Clone, Debug)]
pub(crate) struct Busy {
    pub(crate) expiry: Expiry,
    pub(crate) position: QueuePosition,
    pub(crate) wake_up: WakeUpMode,
    /// Whether the entry is the first of the queue, as far as known. Any other entry gets the lock after the one before it.
    pub(crate) is_next: bool,
    /// If the reply had it: every earlier grant of this request has a stamp up to it, and every later grant a larger one. Stamps come
    /// from the fencing clock, as tokens do. All holders of a shared phase have one token, and stamps of their own.
    pub(crate) stamp: Option<u64>,
    /// The label of the holder, if the reply had it.
    pub(crate) holder: Option<Arc<str>>,
}

/// When a lock that is busy ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    In(Duration),
    Never,
    /// Not asked for.
    Unknown,
}

/// How a waiter learns that a lock is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeUpMode {
    /// By a grant.
    Push,
    /// Only by polling: the holder is another library, or grants cannot be delivered.
    Poll,
    /// By polling with another owner token each time: some of several servers may have taken this one.
    PollWithNewToken,
}

impl Busy {
    /// Whether the token of the request must not be used for another request.
    pub(crate) fn needs_new_token(&self) -> bool {
        self.wake_up == WakeUpMode::PollWithNewToken
    }
}

/// Whether other processes wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contended {
    /// In a queue: the release grants the lock to the first one.
    OthersQueued,
    /// They poll, or may do so.
    OthersWaiting,
    NoneWaiting,
}

#[derive(Clone, Debug)]
pub(crate) struct Renew {
    pub(crate) full_key: Arc<str>,
    pub(crate) token: OwnerToken,
    pub(crate) ttl: Duration,
    /// As with an acquire.
    pub(crate) known_fencing: u64,
    /// How many fencing tokens are wanted in advance, for tasks to which an exclusive lease is handed without a message. Mostly zero.
    pub(crate) tokens: u32,
    pub(crate) entry: Entry,
    /// The record of the acquire: at one of several servers, the renewal may restore the key.
    pub(crate) acquire_in_flight: Arc<InFlight>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Extended {
        /// Empty if none were wanted, or none can be given now.
        tokens: FencingBlock,
        /// Of a share: whether an exclusive request waits, so that no further task is to be admitted. Of an exclusive lease, a reply
        /// without tokens does not tell.
        contended: Contended,
    },
    /// The key is gone or another's: the lease is lost, whatever comes later.
    NotOurs,
}

#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) full_key: Arc<str>,
    pub(crate) token: OwnerToken,
    /// Instead of deleting the key, lets it expire after this long.
    pub(crate) keep: Option<Duration>,
    /// The result of a run, stored in the same step if the key still holds the owner token.
    pub(crate) result: Option<RunResult>,
    pub(crate) known_fencing: u64,
    pub(crate) entry: Entry,
    /// Whether the entry may be in the queue.
    pub(crate) may_be_queued: bool,
    /// As with an acquire.
    pub(crate) in_flight: Arc<InFlight>,
    /// The record of the acquire.
    pub(crate) acquire_in_flight: Arc<InFlight>,
}

/// What a run leaves for later callers.
#[derive(Clone)]
pub(crate) struct RunResult {
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

/// A release that goes on until it is certain that the key is not ours and will not be.
#[derive(Clone, Debug)]
pub(crate) struct CertainRelease {
    /// A try, but for what it takes from the fields below.
    pub(crate) request: Release,
    /// Until when `min_hold` keeps the key.
    pub(crate) kept_until: Option<Moment>,
    pub(crate) started: Moment,
    /// For how long a copy of the acquire may block others.
    pub(crate) ttl: Duration,
    /// Until when the lease is certain to be ours.
    pub(crate) valid_until: Moment,
    pub(crate) fencing_clock: ClockIndex,
    pub(crate) known_tokens: Arc<KnownTokens>,
    /// Where the tries run that the caller does not wait for.
    pub(crate) executor: Executor,
    pub(crate) clock: Clock,
    pub(crate) command_timeout: Duration,
    /// A shutdown waits for it.
    pub(crate) _open: Open,
    /// Where a release is open whose result is known, and that the drop of the last manager waits for.
    pub(crate) in_background: Arc<Tally>,
}

impl CertainRelease {
    /// The next try, as it is sent now.
    pub(crate) fn next_try(&mut self) -> &Release {
        let kept_for = |until: Moment| until.since(self.clock.now());
        self.request.keep = (self.kept_until.map(kept_for)).filter(|keep| !keep.is_zero());
        self.request.known_fencing = self.known_tokens.of(self.fencing_clock);
        &self.request
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Released {
    pub(crate) outcome: ReleaseOutcome,
    pub(crate) connection: ConnectionId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    Released,
    /// The same, and requests may wait in the queue: the next try, which is to follow at once, grants the lock to them.
    ReleasedUnserved,
    /// The server has no memory for the result. The lock is held as before.
    NotStored,
    /// Released without the result that was to be stored.
    ReleasedWithoutResult,
    NotOurs,
}

/// Why there is no reply, or none that can be used.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// It is unknown whether the request was executed.
    NoReply(Source),
    /// Not executed, but a retry may succeed: the server is loading, out of memory, read-only.
    NotNow(Source),
    /// Not executed, and a retry cannot succeed: a missing right, or an unknown command.
    Refused(Source),
    /// Not executed, because the request itself is wrong.
    Invalid(Arc<str>),
}

/// The cause behind a failure, for the user's log.
pub(crate) type Source = Arc<dyn Error + Send + Sync>;

impl Failure {
    /// For a request that gets no reply any more.
    pub(crate) fn without_reply(message: &str) -> Self {
        Self::NoReply(Arc::from(Box::<dyn Error + Send + Sync>::from(message)))
    }

    /// There is no connection, or none that takes more.
    pub(crate) fn not_now(message: impl Into<String>) -> Self {
        Self::NotNow(Arc::from(Box::<dyn Error + Send + Sync>::from(
            message.into(),
        )))
    }

    pub(crate) fn no_reply(message: impl Into<String>) -> Self {
        Self::NoReply(Arc::from(Box::<dyn Error + Send + Sync>::from(
            message.into(),
        )))
    }

    /// For a request that was executed in part.
    pub(crate) fn executed_in_part(self) -> Self {
        match self {
            Self::NoReply(source) | Self::NotNow(source) | Self::Refused(source) => {
                Self::NoReply(source)
            }
            Self::Invalid(reason) => Self::no_reply(&*reason),
        }
    }

    /// Whether it is certain that the request was not executed.
    pub(crate) fn is_definite(&self) -> bool {
        !matches!(self, Self::NoReply(_))
    }

    /// What the log says of it.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::NoReply(source) | Self::NotNow(source) | Self::Refused(source) => {
                source.to_string()
            }
            Self::Invalid(reason) => reason.to_string(),
        }
    }

    /// Whether a retry can succeed.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::NoReply(_) | Self::NotNow(_))
    }
}

impl From<Failure> for crate::LockError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NoReply(source) | Failure::NotNow(source) | Failure::Refused(source) => {
                Self::Unavailable { key: None, source }
            }
            Failure::Invalid(reason) => Self::Invalid { key: None, reason },
        }
    }
}
