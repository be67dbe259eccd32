//! One owner token, and the requests to the server that carry it.
//!
//! A request without a reply may or may not have been granted. So it may hold the lock from before its first byte is sent until
//! a definite reply to all its copies. During this time, giving up the request releases the key.
//!
//! The message that closes a share can be read before the reply that grants it. Rejected: dropping the message, since there is
//! no share yet. The share then kept the exclusive request out. Instead, the request remembers the message (`is_contended`),
//! and the share begins closed. A message about an older grant may close a share early, which costs one round trip.

use std::time::Duration;

use crate::{
    engine::{
        reply::{AcquireOutcome, Busy, Expiry, PushedGrant, QueueMode, WakeUpMode},
        transition::{Action, POLL_WITHIN, Refusal, ReleaseAction, TaskId, Transition},
    },
    failure::Failure,
    mode::Mode,
    moment::Moment,
};

/// The time between two checks of an entry, plus a jitter of a twentieth. A check shows the server that the process is alive.
/// The server skips an entry that missed two checks (`SILENT` in `queue.lua`).
const BEAT: Duration = Duration::from_secs(1);

/// How soon after joining the queue the entry is checked for the first time. The reply tells when the holder's lease ends.
const FIRST_CHECK: Duration = Duration::from_millis(150);

/// The shortest pause before the next request for a key that is about to be free.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

/// After this many consecutive replies that grant less than half of the ttl, the ttl is refused as too short for this server.
pub(crate) const MOST_LATE_GRANTS: u32 = 3;

#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest<O> {
    pub(crate) owner: O,
    /// The mode for which the owner token is used. It never changes.
    pub(crate) mode: Mode,
    pub(crate) queue_mode: QueueMode,
    /// The longest ttl that was requested: a copy that is executed late can block others for that long.
    pub(crate) ttl: Duration,
    /// The ttl of the entry in the queue, if the entry may have joined. A grant by a message has this ttl. It never changes, since
    /// the server finds the entry by its whole text.
    pub(crate) queued_ttl: Option<Duration>,
    /// When the last request with the reply "wait" and a stamp was sent, or else the request that joined the queue. A grant
    /// with a stamp larger than `known_since` is younger.
    pub(crate) waits_since: Moment,
    /// Stamps up to this one belong to grants that are over.
    pub(crate) known_since: u64,
    /// `true` if the server may have this token, as the holder or in the queue, although no reply has said so.
    pub(crate) may_hold: bool,
    /// `true` if a message said that an exclusive request waits for the share of this request. The message can be read before
    /// the reply that grants the share.
    pub(crate) is_contended: bool,
    /// `true` if copies of the request were sent on several connections, and some have no reply.
    pub(crate) is_astray: bool,
    pub(crate) rivals: Rivals,
    pub(crate) failures: u32,
    /// The number of consecutive replies that granted a lease of which less than half was left by then.
    pub(crate) late_grants: u32,
    pub(crate) last_reply: Option<Refusal>,
    pub(crate) step: RequestStep,
    pub(crate) meanwhile: Meanwhile,
}

#[derive(Clone, Debug)]
pub(crate) enum RequestStep {
    /// A request is in flight. It ends with a reply, within the backend's time-outs.
    InFlight {
        sent: Moment,
        ttl: Duration,
        queue_mode: QueueMode,
        /// `may_hold` and `queue_mode` from before the request, restored if it certainly was not executed.
        before: (bool, QueueMode),
        /// For a body that is to run once: the last task that waited when the request was sent. A task that arrived later is
        /// not answered by the reply, because its call may have begun after the result was forgotten.
        answers_up_to: Option<TaskId>,
        polled_by: Option<TaskId>,
    },
    /// Nothing is in flight. The next request is sent at `until`, or earlier after a message or a new connection.
    Waiting { until: Moment, wake_ups: WakeUps },
}

/// The other clients that the request has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rivals {
    None,
    /// It found the lock busy.
    Holder,
    /// It was in the queue, so the release of the holder grants the lock.
    Queue,
}

/// Events that arrived while a request was in flight. A grant takes precedence over a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Meanwhile {
    #[default]
    Nothing,
    Reconnected,
    Granted(PushedGrant),
}

/// The events that send the next request before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeUps {
    GrantsAndConnections,
    /// The server said that it cannot serve requests now, and says so on each new connection. Such a reply may end the
    /// connection, as that of a replica does. Waiters would then go from one connection to the next without a pause.
    GrantsOnly,
}

/// The reply to a request for the key, and the state of its copies.
#[derive(Clone, Debug)]
pub(crate) struct AcquireReply {
    pub(crate) result: Result<AcquireOutcome, Failure>,
    /// Every copy that was sent was executed, or never will be.
    pub(crate) is_settled: bool,
    /// No copy was sent.
    pub(crate) has_not_left: bool,
    /// Copies were sent on several connections.
    pub(crate) is_astray: bool,
}

impl<O> AcquireRequest<O> {
    pub(crate) fn new(owner: O, mode: Mode) -> Self {
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
            late_grants: 0,
            last_reply: None,
            step: RequestStep::Waiting {
                until: Moment::from_nanos(0),
                wake_ups: WakeUps::GrantsAndConnections,
            },
            meanwhile: Meanwhile::Nothing,
        }
    }

    /// Records a reply that grants. `is_late` says that less than half of its lease was left by then.
    pub(crate) fn count_late_grants(&mut self, is_late: bool) {
        let before = if is_late { self.late_grants } else { 0 };
        self.late_grants = before.saturating_add(u32::from(is_late));
    }

    /// Returns `true` if enough is known to refuse a waiter.
    pub(crate) fn has_reply(&self) -> bool {
        self.last_reply.is_some() || matches!(self.step, RequestStep::Waiting { .. })
    }

    /// There is a new connection, so a request that waits is sent at `at`.
    pub(crate) fn reconnected(&mut self, at: Moment) {
        match &mut self.step {
            RequestStep::Waiting {
                until,
                wake_ups: WakeUps::GrantsAndConnections,
            } => *until = at.min(*until),
            RequestStep::Waiting { .. } => {}
            RequestStep::InFlight { .. } => {
                if matches!(self.meanwhile, Meanwhile::Nothing) {
                    self.meanwhile = Meanwhile::Reconnected;
                }
            }
        }
    }

    pub(crate) fn is_no_longer_polled_by(&mut self, id: TaskId) {
        if let RequestStep::InFlight { polled_by, .. } = &mut self.step
            && *polled_by == Some(id)
        {
            *polled_by = None;
        }
    }

    /// Returns whether the task has not polled the request for too long. From then on the state does not wait for that task.
    pub(crate) fn stop_waiting_for_poll(&mut self, now: Moment) -> bool {
        match &mut self.step {
            RequestStep::InFlight {
                sent, polled_by, ..
            } if now >= sent.after(POLL_WITHIN) => polled_by.take().is_some(),
            _ => false,
        }
    }

    pub(crate) fn due(&self) -> Option<Moment> {
        match self.step {
            RequestStep::Waiting { until, .. } => Some(until),
            RequestStep::InFlight {
                sent,
                polled_by: Some(_),
                ..
            } => Some(sent.after(POLL_WITHIN)),
            // The reply arrives within the backend's time-outs.
            RequestStep::InFlight { .. } => None,
        }
    }

    pub(crate) fn wait_until(&mut self, until: Moment) {
        self.step = RequestStep::Waiting {
            until,
            wake_ups: WakeUps::GrantsAndConnections,
        };
    }

    pub(crate) fn give_up<W, L>(self, now: Moment) -> Option<Action<W, L, O>> {
        self.may_hold.then_some(Action::Release(ReleaseAction {
            owner: self.owner,
            ttl: self.ttl,
            valid_until: now,
            kept_until: None,
            is_queued: true,
        }))
    }
}

/// Returns the time until the entry is checked, which is a beat. Only the check of the first entry in the queue is sent sooner:
/// when the holder's lease must have ended, or, if no message will arrive, after the builder's pause. So a key costs a server
/// one check a second for each process. The first process of the queue adds one check for each ttl, or one for each pause.
///
/// `is_first` says that the reply is to the request that joined the queue.
pub(crate) fn checking_pause<W, L, O>(
    busy: &Busy,
    is_first: bool,
    cx: &Transition<'_, W, L, O>,
) -> Duration {
    let beat = BEAT + cx.host.jitter(BEAT / 20);
    if !busy.is_next {
        return beat;
    }
    let pause = match busy.wake_up {
        WakeUpMode::Push if is_first => cx.host.jitter(FIRST_CHECK),
        WakeUpMode::Push => beat,
        WakeUpMode::Poll | WakeUpMode::PollWithNewToken => cx.host.jitter(cx.polling_pause),
    };
    match busy.expiry {
        // Two milliseconds later, with jitter, since the server counts in whole milliseconds.
        Expiry::In(left) => pause
            .min(left + cx.host.jitter(Duration::from_millis(2)))
            .max(SHORTEST_PAUSE),
        Expiry::Never | Expiry::Unknown => pause,
    }
}
