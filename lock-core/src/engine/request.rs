//! One owner token, and the requests to the server that carry it.
//!
//! A request without a reply may or may not have been granted the lock. So from before its first byte is sent until all its
//! copies have a definite reply, the token may hold the lock. If the request is given up in this time, the key is released.
//!
//! The message that closes a share can be read before the reply that grants the share. The request then remembers the
//! message (`is_contended`), and the share is closed from the start. Rejected: ignoring a message for a share that does not
//! exist yet, because the share would then keep the exclusive request out. A message about an older grant may close a share
//! too early, which costs one round trip.

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

/// The time between two checks of an entry, to which a jitter of about a twentieth is added. A check shows the server that
/// the process is alive. The server skips an entry that has missed two checks (`SILENT` in `queue.lua`).
const BEAT: Duration = Duration::from_secs(1);

/// How soon after joining the queue the entry is checked for the first time. The reply says when the holder's lease ends.
const FIRST_CHECK: Duration = Duration::from_millis(150);

/// The shortest pause before the next request for a key that is about to become free.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

/// The number of consecutive late grants after which the ttl is refused as too short for this server. A grant is late if
/// less than half of the ttl is left when it arrives.
pub(crate) const MOST_LATE_GRANTS: u32 = 3;

#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest<O> {
    pub(crate) owner: O,
    /// The mode for which the owner token is used. It never changes.
    pub(crate) mode: Mode,
    pub(crate) queue_mode: QueueMode,
    /// The ttl that was requested last. It never decreases, since a copy that is executed late can block others for that
    /// long.
    pub(crate) ttl: Duration,
    /// The ttl of the entry in the queue, if one may exist. A grant by a message has this ttl. It never changes, since
    /// the server finds the entry by its whole text.
    pub(crate) queued_ttl: Option<Duration>,
    /// When the last request was sent that got a "wait" reply with a stamp, or else the request that joined the
    /// queue. A grant with a stamp larger than `known_since` is newer.
    pub(crate) waits_since: Moment,
    /// Stamps up to this one belong to grants that have ended.
    pub(crate) known_since: u64,
    /// `true` if the server may have this token, as the holder or in the queue, even if no reply has said so.
    pub(crate) may_hold: bool,
    /// `true` if a message said that an exclusive request waits for the share of this request.
    pub(crate) is_contended: bool,
    /// `true` if copies of the request were sent on several connections, and some of them have no reply.
    pub(crate) is_astray: bool,
    pub(crate) rivals: Rivals,
    pub(crate) failures: u32,
    /// The number of consecutive late grants: see [`MOST_LATE_GRANTS`].
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
        /// The values of `may_hold` and `queue_mode` before the request, which are restored if it was certainly not
        /// executed.
        before: (bool, QueueMode),
        /// For a body that should run once: the last task that waited when the request was sent. The reply does not answer
        /// a task that arrived later, because its call may have begun after the result was forgotten.
        answers_up_to: Option<TaskId>,
        polled_by: Option<TaskId>,
    },
    /// Nothing is in flight. The next request is sent at `until`, or earlier after a message or a new connection.
    Waiting { until: Moment, wake_ups: WakeUps },
}

/// The other clients that the request has encountered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rivals {
    None,
    /// The lock was busy.
    Holder,
    /// The lock was busy, and the request joined the queue.
    Queue,
}

/// The event that arrived while a request was in flight, if any. A grant takes precedence over a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Meanwhile {
    #[default]
    Nothing,
    Reconnected,
    Granted(PushedGrant),
}

/// The events that trigger the next request early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeUps {
    GrantsAndConnections,
    /// The server said that it cannot serve requests now, and would say so on each new connection. Such a reply may end the
    /// connection, as that of a replica does, and waiters would then open one connection after the other without a pause.
    GrantsOnly,
}

/// The reply to a request for the key, and what is known about its copies.
#[derive(Clone, Debug)]
pub(crate) struct AcquireReply {
    pub(crate) result: Result<AcquireOutcome, Failure>,
    /// `true` if no copy that was sent can be executed any more.
    pub(crate) is_settled: bool,
    /// `true` if no copy was sent.
    pub(crate) has_not_left: bool,
    /// `true` if copies were sent on several connections.
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

    /// Records that the lock was granted, and whether less than half of the ttl was left by then.
    pub(crate) fn count_late_grants(&mut self, is_late: bool) {
        let before = if is_late { self.late_grants } else { 0 };
        self.late_grants = before.saturating_add(u32::from(is_late));
    }

    /// Returns `true` if enough is known to refuse a waiter.
    pub(crate) fn has_reply(&self) -> bool {
        self.last_reply.is_some() || matches!(self.step, RequestStep::Waiting { .. })
    }

    /// Records that there is a new connection, so that a request that is not in flight is sent at `at`.
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

    /// Returns `true` if the task has gone too long without polling the request. From then on, the state does not wait
    /// for that task.
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
            // No timer is needed, since the reply arrives within the backend's time-outs.
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

/// Returns the time until the next check of the entry, which is usually a beat. Only the first entry of the queue is
/// checked sooner: when the holder's lease must have ended, or after the builder's polling pause if no message will arrive.
/// So each process that waits for a key costs the server one check a second, and the first one adds a check for each ttl or
/// each pause.
///
/// `is_first` is `true` for the reply to the request that joined the queue.
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
        // About two milliseconds are added, since the server counts in whole milliseconds.
        Expiry::In(left) => pause
            .min(left + cx.host.jitter(Duration::from_millis(2)))
            .max(SHORTEST_PAUSE),
        Expiry::Never | Expiry::Unknown => pause,
    }
}
