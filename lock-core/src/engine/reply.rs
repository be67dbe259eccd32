//! The types of requests and replies: the options of an acquire that finds a busy lock, and outcomes.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use crate::fencing::FencingBlock;

#[derive(Clone, Debug)]
pub(crate) enum AcquireOutcome {
    Granted(Grant),
    Busy(Busy),
    /// The result of an earlier run, for a request to run a body once. The request has neither the lock nor an entry in the
    /// queue.
    Done(Arc<[u8]>),
    /// The request must be undone: the key may have this owner token, which must not be used for another request. The next
    /// request uses another one, at once.
    Undo,
}

/// The lease that a request was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) tokens: FencingBlock,
    /// The number of the permit, if the lock has permits.
    pub(crate) permit: Option<u16>,
    /// For a share: `true` if an exclusive request waits, so that no further task may be admitted.
    pub(crate) is_contended: bool,
    /// For a share: `true` if others are to be granted the same phase. A renewal grants it to the next ones.
    pub(crate) has_more: bool,
}

impl Grant {
    /// The grant of an exclusive lock, without its tokens.
    pub(crate) const ALONE: Self = Self {
        tokens: FencingBlock::EMPTY,
        permit: None,
        is_contended: false,
        has_more: false,
    };
}

impl From<FencingBlock> for Grant {
    fn from(tokens: FencingBlock) -> Self {
        Self {
            tokens,
            ..Self::ALONE
        }
    }
}

/// A grant that arrived by a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PushedGrant {
    pub(crate) grant: Grant,
    /// Larger than the stamp of every reply that was sent before it.
    pub(crate) stamp: u64,
}

/// A notice to an entry. With a server, it arrives by a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The lock was granted to it.
    Granted(PushedGrant),
    /// An exclusive request waits for its share.
    Contended,
    /// Merely a reason to send a request to the server. The lock may have been granted, or the body that is to run once may
    /// have run.
    Hint,
}

/// A position in the queue of a backend. None is known before the first check.
pub(crate) type QueuePosition = Option<NonZeroU64>;

/// Another holder has the lock.
#[derive(Clone, Debug)]
pub(crate) struct Busy {
    pub(crate) expiry: Expiry,
    pub(crate) position: QueuePosition,
    pub(crate) wake_up: WakeUpMode,
    /// `true` if the entry is the first of the queue, as far as known. Any other entry gets the lock after the one before it.
    pub(crate) is_next: bool,
    /// The stamp of the reply, if it had one: every earlier grant of this request has a stamp up to it, and every later grant a
    /// larger one. Stamps come from the fencing clock, as tokens do. All holders of a shared phase have one token, and stamps of
    /// their own.
    pub(crate) stamp: Option<u64>,
    /// The label of the holder, if the reply had it.
    pub(crate) holder: Option<Arc<str>>,
}

/// The time at which a busy lock ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    In(Duration),
    Never,
    /// The reply did not include it.
    Unknown,
}

/// The way in which a waiter learns that a lock is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeUpMode {
    /// By a grant.
    Push,
    /// Only by polling, because the holder is another library, or grants cannot be delivered.
    Poll,
    /// By polling with another owner token each time, because some of several servers may have taken this one.
    PollWithNewToken,
}

impl Busy {
    /// For a lock that has no queue.
    pub(crate) fn without_queue(expiry: Expiry, wake_up: WakeUpMode) -> Self {
        Self {
            expiry,
            position: None,
            wake_up,
            is_next: true,
            stamp: None,
            holder: None,
        }
    }

    /// Returns `true` if the token of the request must not be used for another request.
    pub(crate) fn needs_new_token(&self) -> bool {
        self.wake_up == WakeUpMode::PollWithNewToken
    }
}

/// The behaviour of an acquire when the lock is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueMode {
    /// Nothing.
    DoNotQueue,
    /// Joins the queue, for the first time with this entry.
    JoinQueue,
    /// Checks its position in the queue, starting from this one if the server reported one.
    CheckPosition(QueuePosition),
}

/// The server's knowledge about other processes that wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contended {
    /// In a queue: the release grants the lock to the first one.
    OthersQueued,
    /// They poll, or may do so.
    OthersWaiting,
    NoneWaiting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Extended {
        /// Empty if none were wanted, or none can be given now.
        tokens: FencingBlock,
        /// For a share: whether an exclusive request waits, so that no further task may be admitted. For an exclusive lease, a
        /// reply without tokens does not tell.
        contended: Contended,
    },
    /// The key is gone or another's, so the lease is lost, whatever arrives later.
    NotOurs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    Released,
    /// The server has no memory for the result. The lock is still held.
    NotStored,
    /// Released, but the result that was to be stored was not.
    ReleasedWithoutResult,
    NotOurs,
}
