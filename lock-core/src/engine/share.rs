//! A share: a server lease that serves all tasks of this process, and is kept for later ones.
//!
//! A task that comes while a share is open gets it without a message. The first exclusive request that waits for the key closes the
//! share: a message, a grant or a renewal reports that request. A closed share ends with its last task. Tasks that come later ask
//! for another share, which queues. So an exclusive request waits for the bodies that were admitted before it, and for the message
//! to the process. If the message is lost, it waits for a renewal instead.
//!
//! Clients that do not queue cannot report that they wait: other libraries, and users without scripts. They have no turn while
//! readers overlap.

use std::time::Duration;

use crate::{engine::terms::Terms, mode::RequestKind, moment::Moment, options::AutoRenew};

/// For how long a share without a task is kept, at most a third of its ttl.
pub(crate) const KEPT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Whether it admits further tasks. Not once an exclusive request waits, and not if the lease cannot serve further tasks.
    pub(crate) is_open: bool,
    /// Until when the share is kept, if no task has it.
    pub(crate) unused_until: Option<Moment>,
    /// Until when `min_hold` of one of its tasks keeps it on the server.
    pub(crate) kept_until: Option<Moment>,
}

impl Share {
    /// Makes the share of a new lease; `None` if the lease is not shared. It is open if the lease is renewed and no exclusive
    /// request waits.
    pub(crate) fn new(terms: &Terms, is_contended: bool) -> Option<Self> {
        let is_shared = terms.mode.kind() == RequestKind::Shared;
        is_shared.then_some(Self {
            is_open: terms.renew == AutoRenew::On && !is_contended,
            unused_until: None,
            kept_until: None,
        })
    }

    pub(crate) fn keep_until(&mut self, until: Option<Moment>) {
        self.kept_until = self.kept_until.max(until);
    }
}
