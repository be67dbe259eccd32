//! The events of a key, and their outcome for the task that caused them.

use crate::{
    engine::{
        reply::PushedGrant,
        request::AcquireReply,
        server_lease::RenewalReply,
        terms::{HoldBounds, Terms},
        transition::{Refusal, ReleaseAction, TaskId},
    },
    error::LeaseLost,
    moment::Moment,
};

#[derive(Debug)]
pub(crate) enum Event<'a, W, O> {
    /// A polling task takes an open share, or starts to wait and leaves its waker. It is refused at once if the lock is taken
    /// and the task does not wait.
    Wait {
        id: TaskId,
        terms: &'a Terms,
        deadline: Option<Moment>,
        waker: &'a mut Option<W>,
    },
    /// A waiting task polls, perhaps with the reply to the request that it polled. It accepts its grant or its refusal, or
    /// replaces its waker.
    Poll {
        id: TaskId,
        waker: &'a mut Option<W>,
        reply: Option<(&'a O, AcquireReply)>,
    },
    /// A task stops waiting, in any state of its wait. The manager's executor continues with the request that it polled.
    Leave(TaskId),
    /// A task begins to run under its lease, which has these bounds from then on.
    Begin(TaskId, HoldBounds),
    /// From now on the lease of a task is not renewed. A share is still renewed, since other tasks may have it; this task then
    /// loses the share one ttl from now.
    StopRenewing(TaskId),
    /// A task releases the lease that it has by this owner token.
    Release(TaskId, &'a O),
    /// The lease of a task is lost, for a reason that the state cannot see by itself.
    Lose(TaskId, LeaseLost),
    /// All leases are lost, whichever tasks have them.
    LoseAll(LeaseLost),
    /// The server replied to the request of this owner token, which the executor waited for.
    Acquired(&'a O, AcquireReply),
    /// A message grants the lock to this owner token.
    Pushed(&'a O, PushedGrant),
    /// An exclusive request of another process waits, so the share of this owner token admits no further task.
    Contended(&'a O),
    /// The server replied to a renewal, or did not reply in time.
    Renewed(&'a O, RenewalReply<'a>),
    /// There has been a new connection since this moment, and messages may have been missed. Also sent for a message that says
    /// that the lock may be ours.
    Reconnected(Moment),
    /// A connection ended at this moment. The next one may lead to another server, where a lease that the server does not know
    /// is lost.
    Disconnected(Moment),
    /// No share admits a further task, because an exclusive request of this process arrives, or the lock was taken from all its
    /// holders.
    CloseShares,
    /// The manager shuts down, so no task waits any more.
    Close,
    /// A timer hint has fired.
    Tick,
}

/// The outcome of an event for the task that caused it.
#[derive(Clone, Debug)]
pub(crate) enum Outcome<L, O> {
    /// The task waits. Also the outcome of an event that no task awaits.
    Pending,
    /// The task holds the lock by this lease.
    Acquired(L),
    Refused(Refusal),
    Released(AfterRelease<O>),
}

/// The fate of a lease that its task released.
#[derive(Clone, Debug)]
pub(crate) enum AfterRelease<O> {
    /// It stays in this process: with the next task, with other tasks of a share, or kept for a later task.
    Passed,
    /// The lease is released. The task may wait for the reply.
    ReturnToServer(ReleaseAction<O>),
    /// The task no longer had it.
    NotHeld,
}
