//! One owner token, and what was asked of the server with it.
//!
//! A reply that never came is neither yes nor no. So a request may hold the lock from before its first byte leaves until a definite
//! reply to all that left. While it may, giving it up releases the key.

use std::time::Duration;

use crate::{
    lock::key_state::{
        action::{Action, POLL_WITHIN, ReleaseAction, TaskId},
        refusal::Refusal,
    },
    mode::Mode,
    runtime::clock::Moment,
    store::{AcquireOutcome, Failure, Grant, PushedGrant, QueueMode},
};

#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest<O> {
    pub(crate) owner: O,
    /// In which the owner token asks, always.
    pub(super) mode: Mode,
    pub(super) queue_mode: QueueMode,
    /// The longest ttl asked for: for so long a copy that is executed late can block others.
    pub(super) ttl: Duration,
    /// The ttl of the entry in the queue, if it may have joined: that of a grant by a message. It never changes, since the server
    /// finds the entry by all of it.
    pub(super) queued_ttl: Option<Duration>,
    /// Before the last request left that had the reply "wait" with the counter, or the first one of all. A grant with a larger
    /// token is younger.
    pub(super) waits_since: Moment,
    /// The largest stamp known then, or given out by then. That of a grant is larger.
    pub(super) known_since: u64,
    /// Whether the key may have this token, or an entry of it may be in the queue, without our knowing.
    pub(super) may_hold: bool,
    /// Whether a message said that an exclusive request waits for the share that this one was given: its reply may not have been read.
    pub(super) is_contended: bool,
    /// Whether copies of the request left on several connections, and some have no reply.
    pub(super) is_astray: bool,
    pub(super) rivals: Rivals,
    pub(super) failures: u32,
    pub(super) last_reply: Option<Refusal>,
    pub(super) step: RequestStep,
    pub(super) meanwhile: Meanwhile,
}

#[derive(Clone, Debug)]
pub(crate) enum RequestStep {
    /// In flight: it ends with a reply, within the store's time-outs.
    Asking {
        sent: Moment,
        ttl: Duration,
        queue_mode: QueueMode,
        /// `may_hold` and `queue_mode` if it turns out that it was not executed.
        before: (bool, QueueMode),
        polled_by: Option<TaskId>,
    },
    /// The renewal is in flight that makes sure of a grant.
    Confirming { sent: Moment, granted: Granted },
    /// Nothing is in flight. The next request leaves at `until`, or when a message or a new connection is a reason for it.
    Waiting { until: Moment, wake_ups: WakeUps },
}

/// What other clients the request has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rivals {
    None,
    /// It found the lock busy.
    Holder,
    /// It was in the queue behind a holder whose release grants the lock.
    Queue,
}

/// What came while a request was in flight. A grant is worth more than a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Meanwhile {
    #[default]
    Nothing,
    Reconnected,
    Granted(PushedGrant),
}

/// What is a reason for the next request before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeUps {
    GrantsAndConnections,
    /// The server said that it cannot serve now, and says so on each new connection. Where each such reply costs the connection, as
    /// that of a replica does, waiters would go from one to the next without a pause.
    GrantsOnly,
}

/// What was granted, before it has a holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    pub(super) grant: Grant,
    pub(super) ttl: Duration,
    pub(super) valid_until: Moment,
}

/// The reply to a request for the key, and what is known of its copies.
#[derive(Clone, Debug)]
pub(crate) struct AcquireReply {
    pub(crate) result: Result<AcquireOutcome, Failure>,
    /// Every copy that left was executed, or never will be.
    pub(crate) is_settled: bool,
    /// No copy has left.
    pub(crate) has_not_left: bool,
    /// Copies left on several connections.
    pub(crate) is_astray: bool,
}

impl Granted {
    /// Whether less than half of its ttl is left: too little for a task to begin with.
    pub(super) fn is_short(&self, now: Moment) -> bool {
        self.valid_until.since(now) < self.ttl / 2
    }
}

impl<O> AcquireRequest<O> {
    pub(super) fn new(owner: O, mode: Mode) -> Self {
        Self {
            owner,
            mode,
            queue_mode: QueueMode::DoNotQueue,
            ttl: Duration::ZERO,
            queued_ttl: None,
            waits_since: Moment::from_nanos(0),
            known_since: 0,
            may_hold: false,
            is_contended: false,
            is_astray: false,
            rivals: Rivals::None,
            failures: 0,
            last_reply: None,
            step: RequestStep::Waiting {
                until: Moment::from_nanos(0),
                wake_ups: WakeUps::GrantsAndConnections,
            },
            meanwhile: Meanwhile::Nothing,
        }
    }

    /// Whether something is known that can be told to a waiter.
    pub(super) fn is_answered(&self) -> bool {
        self.last_reply.is_some() || matches!(self.step, RequestStep::Waiting { .. })
    }

    /// The next request leaves at `at`.
    pub(super) fn reconnected(&mut self, at: Moment) {
        match &mut self.step {
            RequestStep::Waiting {
                until,
                wake_ups: WakeUps::GrantsAndConnections,
            } => *until = at.min(*until),
            RequestStep::Waiting { .. } => {}
            RequestStep::Asking { .. } | RequestStep::Confirming { .. } => {
                if matches!(self.meanwhile, Meanwhile::Nothing) {
                    self.meanwhile = Meanwhile::Reconnected;
                }
            }
        }
    }

    pub(super) fn is_no_longer_polled_by(&mut self, id: TaskId) {
        if let RequestStep::Asking { polled_by, .. } = &mut self.step
            && *polled_by == Some(id)
        {
            *polled_by = None;
        }
    }

    /// Returns whether the request has not been polled for too long by its task, which is not waited for any longer.
    pub(super) fn stop_waiting_for_poll(&mut self, now: Moment) -> bool {
        match &mut self.step {
            RequestStep::Asking {
                sent, polled_by, ..
            } if now >= sent.after(POLL_WITHIN) => polled_by.take().is_some(),
            _ => false,
        }
    }

    pub(super) fn due(&self) -> Option<Moment> {
        match self.step {
            RequestStep::Waiting { until, .. } => Some(until),
            RequestStep::Asking {
                sent,
                polled_by: Some(_),
                ..
            } => Some(sent.after(POLL_WITHIN)),
            // The reply comes within the store's time-outs.
            RequestStep::Asking { .. } | RequestStep::Confirming { .. } => None,
        }
    }

    pub(super) fn wait_until(&mut self, until: Moment) {
        self.step = RequestStep::Waiting {
            until,
            wake_ups: WakeUps::GrantsAndConnections,
        };
    }

    pub(super) fn into_release<W, L>(self, now: Moment) -> Option<Action<W, L, O>> {
        self.may_hold.then_some(Action::Release(ReleaseAction {
            owner: self.owner,
            ttl: self.ttl,
            valid_until: now,
            kept_until: None,
            is_queued: true,
        }))
    }
}
