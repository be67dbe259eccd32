//! The timers of a manager: the hints of the state machines, and the renewals that they cause.
//!
//! Renewals leave in batches, nearest deadlines first, with a bounded number of batches in flight. A server that hangs costs no
//! more than those batches.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    key::LockKey,
    lock::context::Context,
    mode::LockMode,
    runtime::{clock::Moment, mutex::Mutex, timer_queue::TimerQueue},
    store::owner::Owner,
};

/// The most renewals in one message, so that the server stays responsive to others.
const LARGEST_BATCH: usize = 512;

/// The most batches in flight. Further renewals wait in `due`.
const MOST_IN_FLIGHT: usize = 64;

pub(crate) struct Renewal {
    /// The hints of the states. Only the latest hint of a state is of use; the one before it is removed.
    pub(crate) timers: TimerQueue<(LockKey, LockMode)>,
    /// In the order in which their leases end.
    due: Mutex<BTreeMap<(Moment, u64), RenewalDue>>,
    pub(crate) in_flight: AtomicUsize,
    /// Signalled when a renewal is due, and when a batch has its reply.
    pub(crate) changed: Notify,
    /// Whether the task of the timers runs. On a runtime of the caller it ends with that runtime. The next poll or lease then
    /// starts another.
    pub(crate) is_running: AtomicBool,
}

#[derive(Clone)]
pub(crate) struct RenewalDue {
    pub(crate) key: LockKey,
    pub(crate) owner: Arc<Owner>,
    pub(crate) ttl: Duration,
}

impl Renewal {
    pub(crate) fn new() -> Self {
        Self {
            timers: TimerQueue::new(),
            due: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            changed: Notify::new(),
            is_running: AtomicBool::new(false),
        }
    }

    /// Queues the renewal of a lease that ends at `valid_until`.
    pub(crate) fn push(
        &self,
        key: &LockKey,
        owner: Arc<Owner>,
        ttl: Duration,
        valid_until: Moment,
    ) {
        let place = (valid_until, owner.entry.number());
        let due = RenewalDue {
            key: key.clone(),
            owner,
            ttl,
        };
        self.due.lock().insert(place, due);
        self.changed.notify_one();
    }

    /// Wakes the task of the timers, which ends if the registry is gone.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// The next batch: the renewal with the nearest deadline, and those that have the same time-out for the reply.
    pub(crate) fn next_batch(&self, context: &Context) -> Option<(Vec<RenewalDue>, Duration)> {
        let mut due = self.due.lock();
        if self.in_flight.load(Ordering::Acquire) >= MOST_IN_FLIGHT {
            return None;
        }
        let within = patience(due.first_key_value()?.1.ttl, context);
        let alike = due
            .iter()
            .filter(|(_, one)| patience(one.ttl, context) == within);
        let places: Vec<_> = alike.map(|(place, _)| *place).take(LARGEST_BATCH).collect();
        let batch = places
            .iter()
            .filter_map(|place| due.remove(place))
            .collect();
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        Some((batch, within))
    }
}

/// How long one try may take: a tenth of the ttl, but time enough for a few round trips. On a slow network it is two round trips,
/// but a third of the ttl at most. The first try is sent after a third of the ttl, so there is time for a second.
fn patience(ttl: Duration, context: &Context) -> Duration {
    let round_trip = context.store.round_trip();
    let enough = (round_trip * 4).max(Duration::from_millis(20));
    let slow = (round_trip * 2).min(ttl / 3);
    (ttl / 10)
        .max(enough)
        .min(Duration::from_millis(500))
        .max(slow)
}
