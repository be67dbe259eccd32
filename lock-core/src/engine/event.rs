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
    /// A task joins an open share, or starts to wait and registers its waker. If it may not wait and the lock is taken, it
    /// is refused at once.
    Wait {
        id: TaskId,
        terms: &'a Terms,
        deadline: Option<Moment>,
        waker: &'a mut Option<W>,
    },
    /// A waiting task polls, and may have the reply to the request that it polls. It accepts its grant or its refusal, or
    /// replaces its waker.
    Poll {
        id: TaskId,
        waker: &'a mut Option<W>,
        reply: Option<(&'a O, AcquireReply)>,
    },
    /// A task stops waiting, in any stage of its wait. The manager's executor takes over the request that it polls.
    Leave(TaskId),
    /// A task begins to run under its lease, which has these bounds from then on.
    Begin(TaskId, HoldBounds),
    /// The lease of a task must not be renewed any more. A share is still renewed, since other tasks may have it, but this
    /// task loses it one ttl from now.
    StopRenewing(TaskId),
    /// A task releases the lease that it has under this owner token.
    Release(TaskId, &'a O),
    /// The lease of a task is lost, for a reason that the state cannot detect by itself.
    Lose(TaskId, LeaseLost),
    /// All leases are lost, whichever tasks have them.
    LoseAll(LeaseLost),
    /// The server replied to the request of this owner token, for which the executor waited.
    Acquired(&'a O, AcquireReply),
    /// A message grants the lock to this owner token.
    Pushed(&'a O, PushedGrant),
    /// An exclusive request of another process waits, so the share of this owner token admits no further task.
    Contended(&'a O),
    /// The server replied to a renewal, or did not reply in time.
    Renewed(&'a O, RenewalReply<'a>),
    /// There has been a new connection since this moment, and messages may have been missed. The event also reports a
    /// message that the lock may be ours.
    Reconnected(Moment),
    /// A connection ended at this moment. The next one may lead to another server, which may not know the leases.
    Disconnected(Moment),
    /// All shares must close, because this process makes an exclusive request, or because the lock was taken away from all
    /// its holders.
    CloseShares,
    /// The manager shuts down, so no task may wait any more.
    Close,
    /// The timer has fired.
    Tick,
}

/// The outcome of an event for the task that caused it.
#[derive(Clone, Debug)]
pub(crate) enum Outcome<L, O> {
    /// The task waits. Events for which no task waits have this outcome, too.
    Pending,
    /// The task holds the lock by this lease.
    Acquired(L),
    Refused(Refusal),
    Released(AfterRelease<O>),
}

/// The place of a lease after its task has released it.
#[derive(Clone, Debug)]
pub(crate) enum AfterRelease<O> {
    /// It stays in this process: with the next task, with the other tasks of a share, or unused for a later task.
    Passed,
    /// It is released. The task may wait for the reply.
    ReturnToServer(ReleaseAction<O>),
    /// The task no longer had the lease.
    NotHeld,
}
