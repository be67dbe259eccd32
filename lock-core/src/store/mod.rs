//! The port: what the runtime asks of the place where locks are kept.
//!
//! Every reply comes within the time given in the request, or it is [`Failure::NoAnswer`]: the callers have no timers of their own.
//!
//! The futures of [`Store::acquire`] and [`Store::release`] may be polled by any task, on any thread, and be moved between them:
//! they contain nothing of a runtime. Those of the other requests are polled where the manager's work runs.

use std::{
    error::Error, fmt, future::Future, num::NonZeroU64, pin::Pin, sync::Arc, time::Duration,
};

use crate::{
    fencing::FencingBlock,
    inspect::{Health, Sighting},
    store::{
        grants::EntryNumber,
        in_flight::{ConnectionId, InFlight},
        owner_token::OwnerToken,
    },
};

pub(crate) mod grants;
pub(crate) mod in_flight;
pub(crate) mod memory;
pub(crate) mod owner;
pub(crate) mod owner_token;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "redlock")]
pub(crate) mod redlock;
pub(crate) mod timing;

/// What a backend returns.
pub(crate) type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// Why there is no reply, if its runtime ends first.
pub(crate) const ENDED: &str = "the runtime that the request ran on has ended";

pub(crate) trait Store: fmt::Debug + Send + Sync {
    /// Takes the key if it is free, or if it already holds this very token (an earlier request whose answer was lost). Else
    /// takes a place in its queue, or checks on that place, as the request says.
    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired>;

    /// Renews leases, all in one message; never shortens one, never makes a missing key anew (except at a minority of several
    /// servers, while a majority has it). One result a request.
    fn renew(
        &self,
        batch: Vec<Renew>,
        within: Duration,
    ) -> StoreFuture<Vec<Result<Renewed, Failure>>>;

    /// Renews one lease and takes fencing tokens ahead, for tasks to which it is handed without a message.
    fn prefetch(&self, request: Prefetch) -> StoreFuture<Prefetched>;

    /// Lets go of the key if it holds this token, and of the place in its queue; grants it to the next waiter.
    fn release(&self, request: Release) -> StoreFuture<Released>;

    /// Looks at a key.
    fn inspect(&self, full_key: Arc<str>) -> StoreFuture<Option<Sighting>>;

    /// Deletes a key, whoever holds it, and grants it to the next waiter.
    fn force_release(&self, full_key: Arc<str>, known_fencing: u64) -> StoreFuture<()>;

    /// Tries everything that the manager needs from the backend.
    fn check(&self) -> StoreFuture<Health>;

    /// How long a request and its answer take, as measured lately; zero if not known.
    fn round_trip(&self) -> Duration;
}

#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    pub(crate) full_key: Arc<str>,
    pub(crate) token: OwnerToken,
    pub(crate) ttl: Duration,
    /// The largest fencing token that this process knows: the new ones are larger.
    pub(crate) known_fencing: u64,
    /// How many fencing tokens would be of use.
    pub(crate) tokens: u32,
    pub(crate) queue_mode: QueueMode,
    /// By which a grant names this entry.
    pub(crate) entry: EntryNumber,
    /// Where the backend notes each connection that the request leaves on, before its first byte does.
    pub(crate) in_flight: Arc<InFlight>,
}

/// What an acquire does about a lock that is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueMode {
    /// Nothing.
    DoNotQueue,
    /// Takes a place in the queue, for the first time with this entry.
    JoinQueue,
    /// Makes sure of its place, which is this one if it was told one.
    CheckPosition(QueuePosition),
}

/// A place in the queue of a backend; none is known before the first check.
pub(crate) type QueuePosition = Option<NonZeroU64>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Acquired {
    pub(crate) outcome: AcquireOutcome,
    pub(crate) connection: ConnectionId,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum AcquireOutcome {
    Granted(FencingBlock),
    Busy(Busy),
    /// What was done is to be taken back: the key may have this owner token, which must not be asked with again. Another one is, at
    /// once.
    Undo,
}

/// Somebody else has the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy {
    pub(crate) expiry: Expiry,
    pub(crate) position: QueuePosition,
    pub(crate) wake_up: WakeUpMode,
    /// The fencing counter at the time of this word, if it was told: what was granted before has a token up to it, and what
    /// is granted later a larger one.
    pub(crate) counter: Option<u64>,
}

/// When a lock that is busy ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    In(Duration),
    Never,
    /// Not asked for.
    Unknown,
}

/// How a waiter gets to know that a lock is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeUpMode {
    /// By a grant.
    Push,
    /// Only by asking: the holder is another library, or there is no way for a grant.
    Poll,
    /// By asking with another owner token each time: some of several servers may have taken this one.
    PollWithNewToken,
}

impl Busy {
    /// Whether the token that was asked with is not to be asked with again.
    pub(crate) fn needs_new_token(&self) -> bool {
        self.wake_up == WakeUpMode::PollWithNewToken
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Prefetch {
    pub(crate) full_key: Arc<str>,
    pub(crate) token: OwnerToken,
    pub(crate) ttl: Duration,
    pub(crate) known_fencing: u64,
    pub(crate) tokens: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Prefetched {
    Tokens {
        tokens: FencingBlock,
        contended: Contended,
    },
    /// As with [`Renewed::NotOurs`].
    NotOurs,
}

/// Whether other processes wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contended {
    OthersWaiting,
    NoneWaiting,
}

#[derive(Clone, Debug)]
pub(crate) struct Renew {
    pub(crate) full_key: Arc<str>,
    pub(crate) token: OwnerToken,
    pub(crate) ttl: Duration,
    /// That of the acquire: one of several servers may have the key made anew.
    pub(crate) acquire_in_flight: Arc<InFlight>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Extended,
    /// The key is gone or another's: the lease is lost, whatever comes later.
    NotOurs,
}

#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) full_key: Arc<str>,
    pub(crate) token: OwnerToken,
    /// Instead of deleting the key, lets it expire after this long.
    pub(crate) keep: Option<Duration>,
    pub(crate) known_fencing: u64,
    /// The place in the queue that may be left for this token.
    pub(crate) entry: Option<EntryNumber>,
    /// As with an acquire.
    pub(crate) in_flight: Arc<InFlight>,
    /// That of the acquire.
    pub(crate) acquire_in_flight: Arc<InFlight>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Released {
    pub(crate) outcome: ReleaseOutcome,
    pub(crate) connection: ConnectionId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    Released,
    NotOurs,
}

/// Why there is no answer, or none of use.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Nobody knows whether the request was executed.
    NoAnswer(Source),
    /// Not executed, and perhaps later: the server is loading, out of memory, read-only.
    NotNow(Source),
    /// Not executed, and asking again is of no use: no right to, or an unknown command.
    Refused(Source),
    /// Not executed, because the request itself is wrong.
    Invalid(Arc<str>),
}

/// The cause behind a failure, for the user's log.
pub(crate) type Source = Arc<dyn Error + Send + Sync>;

impl Failure {
    /// For a request whose reply nothing waits for.
    pub(crate) fn unanswered(message: &str) -> Self {
        Self::NoAnswer(Arc::from(Box::<dyn Error + Send + Sync>::from(message)))
    }

    /// There is no connection, or none that takes more.
    #[cfg(feature = "redis")]
    pub(crate) fn not_now(message: impl Into<String>) -> Self {
        Self::NotNow(Arc::from(Box::<dyn Error + Send + Sync>::from(
            message.into(),
        )))
    }

    #[cfg(feature = "redis")]
    pub(crate) fn no_answer(message: impl Into<String>) -> Self {
        Self::NoAnswer(Arc::from(Box::<dyn Error + Send + Sync>::from(
            message.into(),
        )))
    }

    /// For a request that was executed in part.
    #[cfg(feature = "redis")]
    pub(crate) fn executed_in_part(self) -> Self {
        match self {
            Self::NoAnswer(source) | Self::NotNow(source) | Self::Refused(source) => {
                Self::NoAnswer(source)
            }
            Self::Invalid(reason) => Self::no_answer(&*reason),
        }
    }

    /// Whether it is certain that the request was not executed.
    pub(crate) fn is_definite(&self) -> bool {
        !matches!(self, Self::NoAnswer(_))
    }

    /// Whether asking again can help.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::NoAnswer(_) | Self::NotNow(_))
    }
}

impl From<Failure> for crate::LockError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NoAnswer(source) | Failure::NotNow(source) | Failure::Refused(source) => {
                Self::Unavailable { key: None, source }
            }
            Failure::Invalid(reason) => Self::Invalid { key: None, reason },
        }
    }
}
