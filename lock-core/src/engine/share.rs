//! A share: a server lease that serves all tasks of this process, and is kept for later ones.
//!
//! A task that comes while a share is open gets it without a message. The first exclusive request that waits for the key closes the
//! share: a message, a grant or a renewal reports that request. A closed share ends with its last task. Tasks that come later ask
//! for another share, which queues. So an exclusive request waits for the bodies that were admitted before it, and for the message
//! to the process. If the message is lost, it waits for a renewal instead.
//!
//! Clients that do not queue cannot report that they wait: other libraries, and users without scripts. For them a share in use is
//! let go once a ttl: see [`LET_GO`].
//!
//! That lasts for two seconds, or until two polling pauses after its last task has left, or until an exclusive request waits.
//! Rejected: two seconds in any case. With a ttl of ten seconds, readers would stand still for a fifth of the time.

use std::time::Duration;

use crate::{
    engine::terms::Terms,
    mode::RequestKind,
    moment::Moment,
    options::{AutoRenew, Wait},
};

/// For how long a share without a task is kept, at most a third of its ttl.
pub(crate) const KEPT: Duration = Duration::from_secs(1);

/// Once per ttl, a share in use admits no new task for this long. If its tasks are gone before, the key is left free for two polling
/// pauses. Then the process asks again.
const LET_GO: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) admits: Admits,
    /// Until when the share is kept, if no task has it.
    pub(crate) unused_until: Option<Moment>,
    /// Until when `min_hold` of one of its tasks keeps it on the server.
    pub(crate) kept_until: Option<Moment>,
}

/// Which tasks a share admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admits {
    /// Tasks that come before this moment.
    Until(Moment),
    /// None: the share is being let go. Until this moment the process asks for no other share, unless the tasks of this one are
    /// gone before.
    NoneUntil(Moment),
    /// None: an exclusive request waits, or the lease cannot serve further tasks.
    None,
}

impl Share {
    /// Makes the share of a new lease; `None` if the lease is not shared. It is open if the lease is renewed and no exclusive
    /// request waits.
    pub(crate) fn new(granted_at: Moment, terms: &Terms, is_contended: bool) -> Option<Self> {
        let is_shared = terms.mode.kind() == RequestKind::Shared;
        let is_open = terms.renew == AutoRenew::On && !is_contended;
        is_shared.then_some(Self {
            admits: if is_open {
                Admits::Until(granted_at.after(terms.ttl))
            } else {
                Admits::None
            },
            unused_until: None,
            kept_until: None,
        })
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.admits, Admits::Until(_))
    }

    /// Whether it admits a task now. A task that does not wait is admitted until the share is closed: otherwise it would be
    /// refused, though no other process has the lock.
    pub(crate) fn admits(&self, wait: Wait, now: Moment) -> bool {
        match self.admits {
            Admits::Until(at) => now < at || wait == Wait::No,
            Admits::NoneUntil(_) => wait == Wait::No,
            Admits::None => false,
        }
    }

    /// Whether its time is over. The first task that comes after that time notices it.
    pub(crate) fn is_to_be_let_go(&self, now: Moment) -> bool {
        matches!(self.admits, Admits::Until(at) if at <= now)
    }

    /// Begins to let the share go.
    pub(crate) fn let_go(&mut self, now: Moment) {
        self.admits = Admits::NoneUntil(now.after(LET_GO));
    }

    /// Until when it is being let go.
    pub(crate) fn let_go_until(&self) -> Option<Moment> {
        match self.admits {
            Admits::NoneUntil(at) => Some(at),
            Admits::Until(_) | Admits::None => None,
        }
    }

    pub(crate) fn keep_until(&mut self, until: Option<Moment>) {
        self.kept_until = self.kept_until.max(until);
    }
}
