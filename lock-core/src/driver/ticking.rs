//! The timer task of a manager: the hints of the state machines, and the renewals that they cause.
//!
//! The hints are stored with the states (`driver/key_map.rs`), under the same mutex. This task examines all of them when it
//! wakes.
//!
//! Renewals are sent in batches, nearest deadlines first, with a bounded number of batches in flight. A server that hangs costs
//! no more than those batches. Renewals that become due in the meantime make larger batches.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Waker,
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    backend::{Renew, Traits, owner::Owner},
    engine::{event::Event, transition::BATCHED_WITHIN},
    key::LockKey,
    mode::RequestKind,
    moment::Moment,
    runtime::{
        clock::Clock,
        executor::Executor,
        mutex::Mutex,
        timer_queue::{Alarm, Due},
    },
};

/// The maximum number of renewals in one message, so that the server stays responsive to others.
const LARGEST_BATCH: usize = 512;

pub(crate) type LiveEvent<'a> = Event<'a, Waker, Arc<Owner>>;

/// The interface of the registry for the parts that report events to it.
pub(crate) trait EventListener: Send + Sync {
    /// Makes the transition of an event, and carries out its effects.
    fn happened(self: Arc<Self>, key: &LockKey, kind: RequestKind, event: LiveEvent<'_>);

    /// Called when the release of this owner token has its result, or when none will arrive.
    fn released(&self, owner: &Owner);

    /// Returns the hints that are due at `now`, together with those that are due within `ahead` from then, or else when the
    /// next one is due.
    fn due(&self, now: Moment, ahead: Duration) -> Due<(LockKey, RequestKind)>;

    /// Sends a batch of renewals, whose reply may take this long.
    fn renew(self: Arc<Self>, batch: Vec<Renew>, within: Duration);

    /// Returns the properties of the backend: how long a renewal takes, and how many batches may be in flight. Further renewals
    /// wait in `due`.
    fn traits(&self) -> Traits;

    /// Called when the timer task has ended, with the runtime on which it ran. Waiters and observers of leases check again,
    /// which starts another one.
    fn rouse_all(&self);
}

pub(crate) struct Ticking {
    /// Wakes the task for the hints of the states, which are stored with the states.
    pub(crate) alarm: Alarm,
    /// In the order in which their leases end.
    due: Mutex<BTreeMap<(Moment, u64), Renew>>,
    in_flight: AtomicUsize,
    /// Signalled when a renewal becomes due, and when a batch gets its reply.
    changed: Notify,
    /// `true` if the task runs. On a runtime of the caller it ends with that runtime. The next poll or lease then starts
    /// another.
    is_running: AtomicBool,
    listener: OnceLock<Weak<dyn EventListener>>,
}

impl Ticking {
    pub(crate) fn new() -> Self {
        Self {
            alarm: Alarm::new(),
            due: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            changed: Notify::new(),
            is_running: AtomicBool::new(false),
            listener: OnceLock::new(),
        }
    }

    /// Sets the listener of the task. The task has no strong reference to it, because the manager and its thread end with their
    /// last user.
    pub(crate) fn listen(&self, listener: Weak<dyn EventListener>) {
        self.listener.get_or_init(|| listener);
    }

    /// Returns the listener for events, unless the manager has ended.
    pub(crate) fn listener(&self) -> Option<Arc<dyn EventListener>> {
        self.listener.get()?.upgrade()
    }

    /// Queues the renewal of a lease that ends at `valid_until`.
    pub(crate) fn push(&self, due: Renew, valid_until: Moment) {
        let place = (valid_until, due.owner.number());
        self.due.lock().insert(place, due);
        self.changed.notify_one();
    }

    /// Records that a batch got its reply.
    pub(crate) fn note_reply(&self) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.changed.notify_one();
    }

    /// Wakes the task, which ends if its listener is gone.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Starts the task, if it does not run.
    pub(crate) fn ensure_running(self: &Arc<Self>, executor: &Executor, clock: &Clock) {
        // Usually the task runs, and a write would evict the flag from the caches of other threads.
        if !self.is_running.load(Ordering::Acquire) && !self.is_running.swap(true, Ordering::AcqRel)
        {
            let (running, clock) = (Running(self.clone()), clock.clone());
            executor.spawn(async move { running.0.run(&clock).await });
        }
    }

    /// Runs until the manager ends, or the runtime on which the task was started.
    async fn run(&self, clock: &Clock) {
        let look = |now| match self.listener() {
            Some(listener) => listener.due(now, BATCHED_WITHIN),
            None => Ok(Vec::new()),
        };
        loop {
            let hints = tokio::select! {
                biased;
                // The timers come first, because frequent changes must not delay them. Batches are sent after either branch.
                hints = self.alarm.due(clock, look) => hints,
                () = self.changed.notified() => Vec::new(),
            };
            let Some(listener) = self.listener() else {
                return;
            };
            for (key, kind) in hints {
                listener.clone().happened(&key, kind, Event::Tick);
            }
            if self.due.lock().is_empty() {
                continue;
            }
            let traits = listener.traits();
            while let Some((batch, within)) = self.next_batch(&traits) {
                listener.clone().renew(batch, within);
            }
        }
    }

    /// Returns the next batch: the renewal with the nearest deadline, and those that have the same time-out for the reply.
    fn next_batch(&self, traits: &Traits) -> Option<(Vec<Renew>, Duration)> {
        let mut due = self.due.lock();
        if self.in_flight.load(Ordering::Acquire) >= traits.batches {
            return None;
        }
        let patience = |one: &Renew| patience(one.ttl, traits.round_trip);
        let within = patience(due.first_key_value()?.1);
        let alike = due.iter().filter(|(_, one)| patience(one) == within);
        let places: Vec<_> = alike.map(|(place, _)| *place).take(LARGEST_BATCH).collect();
        let batch = places
            .iter()
            .filter_map(|place| due.remove(place))
            .collect();
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        Some((batch, within))
    }
}

/// Clears the flag when the task ends, for whatever reason.
struct Running(Arc<Ticking>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::Release);
        if let Some(listener) = self.0.listener() {
            listener.rouse_all();
        }
    }
}

/// Returns how long one try may take: a tenth of the ttl, but long enough for a few round trips. On a slow network it is two
/// round trips, but at most a third of the ttl. The first try is sent after a third of the ttl, so there is time for a second.
fn patience(ttl: Duration, round_trip: Duration) -> Duration {
    let enough = (round_trip * 4).max(Duration::from_millis(20));
    let slow = (round_trip * 2).min(ttl / 3);
    (ttl / 10)
        .max(enough)
        .min(Duration::from_millis(500))
        .max(slow)
}
