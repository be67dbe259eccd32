//! The input and the output of a transition of the state machine.

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

/// The number of fencing tokens that are prefetched at a time. Unused tokens are lost, and a server has 2,048 a millisecond for
/// all of its locks.
pub(crate) const BLOCK: u32 = 64;

/// Like [`BLOCK`], while no other process wants the key. Another process is then noticed after at most this many hand-overs.
pub(crate) const BLOCK_ALONE: u32 = 256;

/// The id of a task that waits for a key, or holds it. The number grows, so it also orders the waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TaskId(pub(crate) u64);

/// With this bound, a process with more waiters than another process has at most two turns to one.
const BEFORE_QUEUE: u32 = 1;

/// A client that polls arrives late, whatever the length of a batch.
const BEFORE_POLLS: u32 = 64;

/// Bounds on how much one manager holds in memory, see the setters of the builder, and on how long it keeps a lock from others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) held: usize,
    pub(crate) waiting: usize,
    /// How often a lock is passed on inside the process while others are in the server's queue.
    pub(crate) handoffs_before_queue: u32,
    /// How often it is passed on if there is no queue.
    pub(crate) handoffs_before_polls: u32,
    /// `true` if a renewal takes fencing tokens for hand-overs. Otherwise a lease has only those of its acquire.
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

/// One transition: its input apart from the state, and its actions.
pub(crate) struct Transition<'a, W, L, O> {
    pub(crate) now: Moment,
    pub(crate) limits: Limits,
    pub(crate) polling_pause: Duration,
    pub(crate) host: &'a dyn Host<W, L, O>,
    pub(crate) actions: Vec<Action<W, L, O>>,
}

/// The lease of a task that takes it now.
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

/// The services that the state machine needs from its surroundings. Called with the mutex of the key locked.
pub(crate) trait Host<W, L, O> {
    /// Makes a random owner token for this mode.
    fn new_owner(&self, mode: Mode) -> O;

    /// Makes the lease that its observers see, for a task that takes it now.
    fn new_lease(&self, new: NewLease<'_, O>) -> L;

    /// Returns the largest fencing token that this process knows of the clock from which this owner's tokens come.
    fn known_fencing(&self, owner: &O) -> u64;

    /// Returns a random time, between half of the span and one and a half of it.
    fn jitter(&self, span: Duration) -> Duration;
}

/// The things that the registry does after the mutex is free, in the order of the list.
#[derive(Clone, Debug)]
pub(crate) enum Action<W, L, O> {
    Wake(W),
    /// A waker that is no longer needed: dropping it runs code of the user's executor.
    Drop(W),
    Acquire(AcquireAction<O>),
    /// The task that polls the request has not polled it for too long, so the manager's executor continues with it.
    FinishRequest,
    Renew {
        owner: O,
        ttl: Duration,
        valid_until: Moment,
        /// The number of fencing tokens that are wanted. If there are any, the renewal is sent at once, and its reply says
        /// whether other processes wait.
        tokens: u32,
    },
    Release(ReleaseAction<O>),
    /// Observers of this lease see that it lasts longer.
    Extend {
        lease: L,
        valid_until: Moment,
    },
    /// Observers of this lease see that it has ended.
    End {
        lease: L,
        reason: LeaseLost,
    },
    /// The lock passed from task to task within this process.
    HandedOnLocally,
    /// The lock passed from another process to this one.
    HandedOnRemotely,
    /// The largest fencing token that this process knows of the owner's clock is at least this one.
    Learn(O, FencingToken),
    /// A timer hint.
    Arm(Moment),
}

/// A request for the key.
#[derive(Clone, Debug)]
pub(crate) struct AcquireAction<O> {
    pub(crate) owner: O,
    pub(crate) ttl: Duration,
    pub(crate) tokens: u32,
    pub(crate) queue_mode: QueueMode,
    /// The ttl of the entry in the queue, if there may be one.
    pub(crate) queued_ttl: Option<Duration>,
    pub(crate) known_fencing: u64,
    /// The task that polls the request, or `None` if the manager's executor polls it.
    pub(crate) polled_by: Option<TaskId>,
}

/// Gives back a server lease, or whatever a request may have acquired.
#[derive(Clone, Debug)]
pub(crate) struct ReleaseAction<O> {
    pub(crate) owner: O,
    pub(crate) ttl: Duration,
    /// Until when the lease is certain to be ours. For a key that was never granted, the time of this action.
    pub(crate) valid_until: Moment,
    /// Until when `min_hold` keeps the key.
    pub(crate) kept_until: Option<Moment>,
    /// `true` if an entry may be in the server's queue.
    pub(crate) is_queued: bool,
}

/// The reason why a wait has ended without the lock.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    Busy {
        /// When the lock ends, unless it is renewed or released; `None` if it has no expiry.
        until: Option<Moment>,
        /// The label of a holder of another process, if known.
        holder: Option<Arc<str>>,
    },
    Failed(Failure),
    /// The result of the body that the task was to run once, which has already run.
    Done(Arc<[u8]>),
    /// The last replies that granted the lock took more than half of the ttl.
    TooSlow {
        took: Duration,
        ttl: Duration,
    },
    Closed,
}

/// The error of a manager that has been shut down.
pub(crate) fn shut_down() -> LockError {
    LockError::unavailable("this lock manager has been shut down")
}

/// The failure of a request that wanted no result but got one.
pub(crate) fn unasked_result() -> LockError {
    LockError::unavailable("the backend replied with the result of a run, which was not asked for")
}

impl Refusal {
    /// The lock is busy until then, as far as this process knows.
    pub(crate) fn busy_until(until: Moment) -> Self {
        Self::Busy {
            until: Some(until),
            holder: None,
        }
    }

    /// `busy` is the knowledge of the process about the busy lock.
    pub(crate) fn into_error(self, key: &LockKey, now: Moment, mut busy: KnownHolder) -> LockError {
        match self {
            Self::Busy { until, holder } => {
                // The knowledge about a holder in this process is newer than the reply of the server.
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
