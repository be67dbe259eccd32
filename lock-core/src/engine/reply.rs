//! The outcomes of requests, and how an acquire may queue for a busy lock.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use crate::fencing::FencingBlock;

#[derive(Clone, Debug)]
pub(crate) enum AcquireOutcome {
    Granted(Grant),
    Busy(Busy),
    /// A request to run a body once found the result of an earlier run. It has neither the lock nor an entry in the queue.
    Done(Arc<[u8]>),
    /// The request must be undone: the key may have this owner token, which must not be used for another request. The lock
    /// is requested again at once, with another token.
    Undo,
}

/// The lease that was granted to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) tokens: FencingBlock,
    /// The number of the permit, if the lock has permits.
    pub(crate) permit: Option<u16>,
    /// For a share: `true` if an exclusive request waits, in which case no further task may be admitted.
    pub(crate) is_contended: bool,
    /// For a share: `true` if there are more waiters for the same phase. The next renewal grants it to some of them.
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
    /// The stamp of the message, which is larger than that of every reply sent before it.
    pub(crate) stamp: u64,
}

/// A notice for an entry. A server sends it as a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The lock was granted to the entry.
    Granted(PushedGrant),
    /// An exclusive request waits for the share of the entry.
    Contended,
    /// A reason to ask the server: the lock may have been granted, or the body that should run once may have run.
    Hint,
}

/// A position in the queue of a backend. None is known before the first check.
pub(crate) type QueuePosition = Option<NonZeroU64>;

/// The reply to an acquire that found the lock busy.
#[derive(Clone, Debug)]
pub(crate) struct Busy {
    pub(crate) expiry: Expiry,
    pub(crate) position: QueuePosition,
    pub(crate) wake_up: WakeUpMode,
    /// `true` if the entry is the first of the queue, as far as is known.
    pub(crate) is_next: bool,
    /// The stamp of the reply, if it had one. Every later grant of this request has a larger stamp, and no earlier one has.
    /// Stamps come from the fencing clock, like tokens. The holders of a shared phase have the same token, but different
    /// stamps.
    pub(crate) stamp: Option<u64>,
    /// The label of the holder, if the reply contained it.
    pub(crate) holder: Option<Arc<str>>,
}

/// The time at which a busy lock expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    In(Duration),
    Never,
    /// The reply did not say.
    Unknown,
}

/// Determines how a waiter learns that a lock is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeUpMode {
    /// By a grant.
    Push,
    /// Only by polling, because the holder is another library, or grants cannot be delivered.
    Poll,
    /// By polling with another owner token each time, because some of the servers may have accepted this one.
    PollWithNewToken,
}

impl Busy {
    /// Creates the reply about a lock that has no queue.
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

/// Determines what an acquire does if the lock is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueMode {
    /// Does not use the queue.
    DoNotQueue,
    /// Joins the queue, for the first time with this entry.
    JoinQueue,
    /// Checks its position in the queue, starting from this one if the server reported one.
    CheckPosition(QueuePosition),
}

/// The server's report on other processes that wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contended {
    /// Other processes are in the queue. A release grants the lock to the first one.
    OthersQueued,
    /// Other processes poll, or may do so.
    OthersWaiting,
    NoneWaiting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Extended {
        /// Empty if none were requested, or none are available now.
        tokens: FencingBlock,
        /// For a share, this says whether an exclusive request waits, in which case no further task may be admitted. For an
        /// exclusive lease, a reply without tokens does not say.
        contended: Contended,
    },
    /// The key is gone or has another holder, so the lease is lost, whatever arrives later.
    NotOurs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    Released,
    /// The server has no memory for the result. The lock is still held.
    NotStored,
    /// Released, but the result of the run could not be stored.
    ReleasedWithoutResult,
    NotOurs,
}
