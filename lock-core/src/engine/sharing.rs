//! The transitions of a share, which is a server lease that serves all tasks of this process, and is kept for later ones.
//!
//! A task that arrives while a share is open joins it without a message. The share closes as soon as an exclusive request
//! waits for the key, which a message, a grant or a renewal reports. A closed share ends with its last task. Tasks that
//! arrive later request another share, which queues on the server. So an exclusive request waits for the bodies that were
//! admitted before it, and for the message to this process, or for the next renewal if the message is lost.
//!
//! Clients that do not queue (other libraries, or users without scripts) cannot report that they wait. They starve
//! while readers overlap.

use std::time::Duration;

use crate::{
    engine::{
        event::AfterRelease, key_state::KeyState, server_lease::RenewalPlan, terms::Terms,
        transition::Transition,
    },
    mode::RequestKind,
    moment::Moment,
    options::AutoRenew,
};

/// How long a share is kept without a task, though never longer than a third of its ttl.
pub(crate) const KEPT: Duration = Duration::from_secs(1);

impl<W, L, O> KeyState<W, L, O>
where
    L: Clone,
    O: Clone + PartialEq,
{
    pub(super) fn close_shares(&mut self, cx: &mut Transition<'_, W, L, O>) {
        // Iterates backwards, because a released lease is removed from the list.
        for at in (0..self.leases.len()).rev() {
            self.close_share(at, cx);
        }
    }

    pub(super) fn contended(&mut self, owner: &O, cx: &mut Transition<'_, W, L, O>) {
        if let Some(at) = self.position_of(owner) {
            self.close_share(at, cx);
        } else if let Some(request) = self.request_mut()
            && request.owner == *owner
        {
            request.is_contended = true;
        }
    }

    /// Grants a new share to all waiters that may have it together with the first one, even if the share is already closed.
    pub(super) fn admit_all(&mut self, at: usize, cx: &mut Transition<'_, W, L, O>) {
        let held = &self.leases[at];
        if held.renewal == RenewalPlan::Off {
            return;
        }
        let (ttl, fencing) = (held.ttl, held.tokens.last());
        let suits = |terms: &Terms| terms.ttl == ttl && terms.renew == AutoRenew::On;
        let queue = &self.waiting_mut().queue;
        for id in queue.those_awake(|waiter| suits(&waiter.terms)) {
            self.grant(at, id, fencing, cx);
        }
    }

    /// Grants open shares to waiters.
    pub(super) fn admit_waiters(&mut self, cx: &mut Transition<'_, W, L, O>) {
        if self.kind != RequestKind::Shared {
            return;
        }
        // Bounded by the number of waiters, because each iteration removes one.
        while let Some((id, head)) = self.head()
            && let terms = head.terms
            && let Some(at) = self.open_share(&terms, cx)
        {
            let fencing = self.leases[at].tokens.last();
            self.grant(at, id, fencing, cx);
        }
    }

    pub(super) fn open_share(&self, terms: &Terms, cx: &Transition<'_, W, L, O>) -> Option<usize> {
        let mut leases = self.leases.iter();
        leases.position(|held| held.admits(terms, cx.now))
    }

    /// Closes the shares that have been kept without a task for long enough, which releases them.
    pub(super) fn release_unused(&mut self, cx: &mut Transition<'_, W, L, O>) {
        // Iterates backwards, because a released lease is removed from the list.
        for at in (0..self.leases.len()).rev() {
            let share = self.leases[at].share.as_ref();
            let until = share.and_then(|share| share.unused_until);
            if until.is_some_and(|until| until <= cx.now) {
                self.close_share(at, cx);
            }
        }
    }

    /// Decides what happens to a share after a task has left it. It stays with the tasks that still have it. If there are
    /// none, an open share is kept for a while, and a closed one returns to the server.
    pub(super) fn keep_share(
        &mut self,
        at: usize,
        kept_until: Option<Moment>,
        cx: &mut Transition<'_, W, L, O>,
    ) -> AfterRelease<O> {
        let held = &mut self.leases[at];
        let Some(share) = &mut held.share else {
            return self.return_to_server(at, kept_until);
        };
        share.kept_until = share.kept_until.max(kept_until);
        if !held.holders.is_empty() {
            return AfterRelease::Passed;
        }
        if share.is_open {
            share.unused_until = Some(cx.now.after(KEPT.min(held.ttl / 3)));
            return AfterRelease::Passed;
        }
        self.return_to_server(at, None)
    }

    /// Closes a share, which then admits no further task. If no task has it, it returns to the server.
    pub(super) fn close_share(&mut self, at: usize, cx: &mut Transition<'_, W, L, O>) {
        let held = &mut self.leases[at];
        let Some(share) = &mut held.share else {
            return;
        };
        share.is_open = false;
        if held.holders.is_empty() {
            self.continue_without_holder(at, None, cx);
        }
    }
}
