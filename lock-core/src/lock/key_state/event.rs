//! What can happen to a key, and the one function that applies it.

use crate::{
    error::LeaseLost,
    lock::key_state::{
        FullState,
        action::{Refusal, TaskId, Transition},
        holding::AfterRelease,
        request::AcquireReply,
        server_lease::RenewalReply,
        terms::{HoldBounds, Terms},
    },
    runtime::clock::Moment,
    store::PushedGrant,
};

#[derive(Debug)]
pub(crate) enum Event<'a, W, O> {
    /// A task that polls takes an open share, or begins to wait and leaves its waker. It is refused at once if the lock is taken and
    /// the task does not wait.
    Wait {
        id: TaskId,
        terms: &'a Terms,
        deadline: Option<Moment>,
        waker: &'a mut Option<W>,
    },
    /// A task that waits polls, perhaps with the reply to the request that it polled. It takes its grant or its refusal, or leaves its
    /// waker in exchange for the one before.
    Poll {
        id: TaskId,
        waker: &'a mut Option<W>,
        reply: Option<(&'a O, AcquireReply)>,
    },
    /// A task stops waiting, in any state of its wait. The manager's executor goes on with the request that it polled.
    Leave(TaskId),
    /// A task begins to run under its lease, which has these bounds from now on.
    Begin(TaskId, HoldBounds),
    /// From now on the lease of a task is not renewed. A share still is, since other tasks may have it: then this task loses the share
    /// a ttl from now.
    StopRenewing(TaskId),
    /// A task releases what it has by this owner token.
    Release(TaskId, &'a O),
    /// The lease of a task is lost, for a reason that the state does not see by itself.
    Lose(TaskId, LeaseLost),
    /// All leases are lost, whichever tasks have them.
    LoseAll(LeaseLost),
    /// The server replied to the request of this owner token, which the executor waited for.
    Acquired(&'a O, AcquireReply),
    /// A message grants the lock to this owner token.
    Pushed(&'a O, PushedGrant),
    /// An exclusive request of another process waits: the share of this owner token admits no further task.
    Contended(&'a O),
    /// The server replied to a renewal, or did not reply in time.
    Renewed(&'a O, RenewalReply<'a>),
    /// There is a new connection since then, and messages may have been missed. Also for a message that says that the lock may be ours.
    Reconnected(Moment),
    /// A connection ended then. The next one may lead to another server: a lease that this server does not know is lost.
    Disconnected(Moment),
    /// No share admits a further task: an exclusive request of this process comes, or the lock was taken from all its holders.
    CloseShares,
    /// The manager shuts down: no task waits any more.
    Close,
    /// A timer hint has fired.
    Tick,
}

/// What an event means for the task that caused it.
#[derive(Clone, Debug)]
pub(crate) enum Outcome<L, O> {
    /// The task waits. Also the outcome of an event that no task waits for.
    Pending,
    /// The task holds the lock by this lease.
    Taken(L),
    Refused(Refusal),
    Released(AfterRelease<O>),
}

impl<W, L, O> FullState<W, L, O>
where
    L: Clone,
    O: Clone + PartialEq,
{
    /// Makes the transition of an event. What comes due by it is done.
    pub(crate) fn apply(
        &mut self,
        event: Event<'_, W, O>,
        cx: &mut Transition<'_, W, L, O>,
    ) -> Outcome<L, O> {
        let mut polling = None;
        let mut outcome = Outcome::Pending;
        match event {
            Event::Wait {
                id,
                terms,
                deadline,
                waker,
            } => {
                polling = Some(id);
                outcome = self.wait(id, terms, deadline, waker, cx);
            }
            Event::Poll { id, waker, reply } => {
                polling = Some(id);
                if let Some((owner, reply)) = reply {
                    // The task is being polled, and needs no wake-up for the result of this reply.
                    self.take_waker(id, cx);
                    self.acquired(owner, reply, cx);
                }
                outcome = self.poll(id, waker, cx);
            }
            Event::Leave(id) => self.leave(id, cx),
            Event::Begin(id, bounds) => self.begin(id, bounds),
            Event::StopRenewing(id) => self.stop_renewing(id, cx.now),
            Event::Release(id, owner) => outcome = Outcome::Released(self.release(id, owner, cx)),
            Event::Lose(id, reason) => self.lose(id, reason, cx),
            Event::LoseAll(reason) => self.lose_all(reason, cx),
            Event::Acquired(owner, reply) => self.acquired(owner, reply, cx),
            Event::Pushed(owner, grant) => self.pushed(owner, grant, cx),
            Event::Contended(owner) => self.contended(owner, cx),
            Event::Renewed(owner, reply) => self.renewed(owner, &reply, cx),
            Event::Reconnected(since) => self.reconnected(since, cx),
            Event::Disconnected(since) => self.disconnected(since, cx),
            Event::CloseShares => self.close_shares(cx),
            Event::Close => self.close(cx),
            Event::Tick => self.progress(cx),
        }
        // A task that has its result polls no request.
        self.go_on(polling.filter(|_| matches!(outcome, Outcome::Pending)), cx);
        outcome
    }
}
