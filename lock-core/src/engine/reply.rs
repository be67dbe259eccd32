//! The words of requests and replies: what an acquire does about a busy lock, and outcomes.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use crate::fencing::FencingBlock;

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

impl Grant {
    /// That of an exclusive lock, but for its tokens.
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

/// A grant that came by a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PushedGrant {
    pub(crate) grant: Grant,
    /// Larger than the stamp of every reply that was sent before it.
    pub(crate) stamp: u64,
}

/// What an entry is notified of. With a server, it comes by a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The lock was granted to it.
    Granted(PushedGrant),
    /// An exclusive request waits for its share.
    Contended,
    /// No more than a reason to send a request to the server. The lock may have been granted, or the body that is to run once has
    /// run.
    Hint,
}

/// A position in the queue of a backend; none is known before the first check.
pub(crate) type QueuePosition = Option<NonZeroU64>;

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
    /// Not requested.
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
    /// Of a lock that has no queue.
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

    /// Whether the token of the request must not be used for another request.
    pub(crate) fn needs_new_token(&self) -> bool {
        self.wake_up == WakeUpMode::PollWithNewToken
    }
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

/// Whether other processes wait for a lock.
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
        /// Of a share: whether an exclusive request waits, so that no further task is to be admitted. Of an exclusive lease, a reply
        /// without tokens does not tell.
        contended: Contended,
    },
    /// The key is gone or another's: the lease is lost, whatever comes later.
    NotOurs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    Released,
    /// The server has no memory for the result. The lock is held as before.
    NotStored,
    /// Released without the result that was to be stored.
    ReleasedWithoutResult,
    NotOurs,
}
