//! The context of a transition of the state machine, and the actions that it results in.

use std::{sync::Arc, time::Duration};

use crate::{
    engine::{reply::QueueMode, terms::Terms},
    error::{HeldBy, KnownHolder, LeaseLost, LockError},
    failure::Failure,
    fencing::FencingToken,
    key::LockKey,
    mode::Mode,
    moment::Moment,
};

/// How long a task that was woken for a grant, or for the reply to its request, may take to poll.
pub(crate) const POLL_WITHIN: Duration = Duration::from_secs(1);

/// Renewals that become due within this time are sent together.
pub(crate) const BATCHED_WITHIN: Duration = Duration::from_millis(20);

/// The number of fencing tokens that are prefetched at a time. Unused tokens are lost, and a server has only 2,048 for each
/// millisecond and all of its locks.
pub(crate) const BLOCK: u32 = 64;

/// The number of tokens that are prefetched while no other process wants the key. The next prefetch, after at most this
/// many hand-overs, notices if another process has begun to wait.
pub(crate) const BLOCK_ALONE: u32 = 256;

/// The id of a task that waits for a key, or holds it. Ids grow with the time of arrival, so they also order the waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TaskId(pub(crate) u64);

/// The number of hand-overs if others are in the queue. With one, a process with many waiters gets at most two turns for
/// each turn of a process with a single waiter.
const BEFORE_QUEUE: u32 = 1;

/// The number of hand-overs if others poll. A poll comes long after the lock is free in any case, so fewer would help
/// little.
const BEFORE_POLLS: u32 = 64;

/// Bounds on how much memory one manager uses, which the builder sets, and on how long it keeps a lock from other
/// processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) held: usize,
    pub(crate) waiting: usize,
    /// How often a lock is handed over within the process while others are in the server's queue.
    pub(crate) handoffs_before_queue: u32,
    /// How often a lock is handed over while others may poll.
    pub(crate) handoffs_before_polls: u32,
    /// `true` if a renewal can take fencing tokens for hand-overs. Otherwise a lease has only those of its acquire.
    pub(crate) prefetches: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            held: 100_000,
            waiting: 100_000,
            handoffs_before_queue: BEFORE_QUEUE,
            handoffs_before_polls: BEFORE_POLLS,
            prefetches: true,
        }
    }
}

/// The context of one transition: its input apart from the state and the event, and the actions that it collects.
pub(crate) struct Transition<'a, W, L, O> {
    pub(crate) now: Moment,
    pub(crate) limits: Limits,
    pub(crate) polling_pause: Duration,
    pub(crate) host: &'a dyn Host<W, L, O>,
    pub(crate) actions: Vec<Action<W, L, O>>,
}

/// The facts from which the driver creates the lease of a task that accepts its grant.
#[derive(Debug)]
pub(crate) struct NewLease<'a, O> {
    pub(crate) id: TaskId,
    pub(crate) owner: &'a O,
    pub(crate) terms: &'a Terms,
    pub(crate) fencing: FencingToken,
    pub(crate) permit: Option<u16>,
    pub(crate) valid_until: Moment,
    pub(crate) is_renewed: bool,
    pub(crate) acquired_at: Moment,
}

/// The services that the state machine needs from the driver. They are called while the mutex of the key is locked.
pub(crate) trait Host<W, L, O> {
    /// Creates a random owner token for this mode.
    fn new_owner(&self, mode: Mode) -> O;

    /// Creates the lease of a task that accepts its grant, as its observers will see it.
    fn new_lease(&self, new: NewLease<'_, O>) -> L;

    /// Returns the largest known fencing token of the clock from which this owner's tokens come.
    fn known_fencing(&self, owner: &O) -> u64;

    /// Returns a random time between half of the span and one and a half times the span.
    fn jitter(&self, span: Duration) -> Duration;
}

/// An action that the driver carries out after the mutex is unlocked, in the order of the list.
#[derive(Clone, Debug)]
pub(crate) enum Action<W, L, O> {
    Wake(W),
    /// Drops a waker that is no longer needed, which runs code of the user's executor.
    Drop(W),
    Acquire(AcquireAction<O>),
    /// Hands the request to the manager's executor, because its task has gone too long without polling it.
    FinishRequest,
    Renew {
        owner: O,
        ttl: Duration,
        valid_until: Moment,
        /// The number of fencing tokens to take. If it is not zero, the renewal is sent at once, and its reply says whether
        /// other processes wait.
        tokens: u32,
    },
    Release(ReleaseAction<O>),
    /// Shows the observers of this lease that it lasts longer.
    Extend {
        lease: L,
        valid_until: Moment,
    },
    /// Shows the observers of this lease that it has ended.
    End {
        lease: L,
        reason: LeaseLost,
    },
    /// Reports that the lock was handed over from task to task within this process.
    HandedOverLocally,
    /// Reports that the lock was handed over from another process to this one.
    HandedOverRemotely,
    /// Records that the owner's fencing clock has reached this token.
    Learn(O, FencingToken),
    /// Sets the timer of the key.
    Arm(Moment),
}

/// A request for the key.
#[derive(Clone, Debug)]
pub(crate) struct AcquireAction<O> {
    pub(crate) owner: O,
    pub(crate) ttl: Duration,
    pub(crate) tokens: u32,
    pub(crate) queue_mode: QueueMode,
    /// The ttl of the entry in the queue, if one may exist.
    pub(crate) queued_ttl: Option<Duration>,
    pub(crate) known_fencing: u64,
    /// The task that polls the request, or `None` if the manager's executor polls it.
    pub(crate) polled_by: Option<TaskId>,
}

/// The release of a server lease, or of whatever a request may have acquired.
#[derive(Clone, Debug)]
pub(crate) struct ReleaseAction<O> {
    pub(crate) owner: O,
    pub(crate) ttl: Duration,
    /// The moment until which the lease is certain to be ours. If the key was never granted, it is the time of this action.
    pub(crate) valid_until: Moment,
    /// The moment until which `min_hold` keeps the key.
    pub(crate) kept_until: Option<Moment>,
    /// `true` if an entry may be in the server's queue.
    pub(crate) is_queued: bool,
}

/// The reason why a wait has ended without the lock.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    Busy {
        /// The moment at which the lock ends unless it is renewed or released; `None` if it has no expiry.
        until: Option<Moment>,
        /// The label of a holder in another process, if it is known.
        holder: Option<Arc<str>>,
    },
    Failed(Failure),
    /// The body that should run once has already run. This is its result.
    Done(Arc<[u8]>),
    /// The last replies that granted the lock took longer than half of the ttl.
    TooSlow {
        took: Duration,
        ttl: Duration,
    },
    Closed,
}

/// Returns the error of a manager that has been shut down.
pub(crate) fn shut_down() -> LockError {
    LockError::unavailable("this lock manager has been shut down")
}

/// Returns the error of a request that was answered with the result of a run, although it did not ask for one.
pub(crate) fn unasked_result() -> LockError {
    LockError::unavailable("the backend replied with the result of a run, which was not asked for")
}

impl Refusal {
    /// Returns the refusal of a lock that is busy until this moment, as far as the process knows.
    pub(crate) fn busy_until(until: Moment) -> Self {
        Self::Busy {
            until: Some(until),
            holder: None,
        }
    }

    /// Converts the refusal to an error. `busy` contains what the process knows about the holder.
    pub(crate) fn into_error(self, key: &LockKey, now: Moment, mut busy: KnownHolder) -> LockError {
        match self {
            Self::Busy { until, holder } => {
                // A holder in this process is known for certain, while the server's reply may be out of date.
                let held_by = busy.held_by.take();
                busy.held_by = held_by.or_else(|| holder.map(HeldBy::OtherProcess));
                LockError::busy(key, until.map(|until| until.since(now)), busy)
            }
            Self::Failed(failure) => LockError::from(failure).about(key),
            Self::Done(_) => unasked_result().about(key),
            Self::TooSlow { took, ttl } => LockError::invalid(format!(
                "a round trip to the backend took {took:?}, more than half of the ttl of {ttl:?}: choose a longer ttl"
            ))
            .about(key),
            Self::Closed => shut_down().about(key),
        }
    }
}
