//! The timer task of a manager, which runs the timers of the state machines and sends the renewals that they cause.
//!
//! The timers are stored with the states (`driver/key_map.rs`), under the same mutex. When this task wakes, it collects all
//! that are due.
//!
//! Renewals are sent in batches, nearest deadlines first, with a bounded number of batches in flight. A server that hangs
//! costs no more than those batches. Renewals that become due in the meantime are sent in larger batches.

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

/// The maximum number of renewals in one message. More would keep the server from replying to others in the meantime.
const LARGEST_BATCH: usize = 512;

pub(crate) type LiveEvent<'a> = Event<'a, Waker, Arc<Owner>>;

/// The registry, as seen by the parts that report events to it.
pub(crate) trait EventListener: Send + Sync {
    /// Applies an event, and carries out its effects.
    fn happened(self: Arc<Self>, key: &LockKey, kind: RequestKind, event: LiveEvent<'_>);

    /// Called when the release of this owner token has a result, or when none will arrive.
    fn released(&self, owner: &Owner);

    /// Returns the timers that are due at `now`, together with those that are due within `ahead` after it. If none is due,
    /// returns when the next one will be.
    fn due(&self, now: Moment, ahead: Duration) -> Due<(LockKey, RequestKind)>;

    /// Sends a batch of renewals, whose reply may take as long as `within`.
    fn renew(self: Arc<Self>, batch: Vec<Renew>, within: Duration);

    /// Returns the properties of the backend, which include its round trip and how many batches may be in flight.
    fn traits(&self) -> Traits;

    /// Called when the timer task has ended together with its runtime. Wakes waiters and observers of leases, which start
    /// another timer task when they check again.
    fn rouse_all(&self);
}

pub(crate) struct Ticking {
    /// Wakes the task for the timers of the states.
    pub(crate) alarm: Alarm,
    /// The renewals to be sent, in the order in which their leases end.
    due: Mutex<BTreeMap<(Moment, u64), Renew>>,
    in_flight: AtomicUsize,
    /// Signalled when a renewal becomes due, and when a batch gets its reply.
    changed: Notify,
    /// `true` while the task runs. On a caller's runtime, the task ends with that runtime, and the next poll or lease
    /// starts a new task.
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

    /// Sets the listener of the task. The reference is weak, because the task must not keep the manager and its thread
    /// alive after their last user is gone.
    pub(crate) fn listen(&self, listener: Weak<dyn EventListener>) {
        self.listener.get_or_init(|| listener);
    }

    /// Returns the listener unless the manager has ended.
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

    /// Starts the task unless it is running.
    pub(crate) fn ensure_running(self: &Arc<Self>, executor: &Executor, clock: &Clock) {
        // Reads first, because the task is usually running, and a write would evict the flag from the caches of other
        // threads.
        if !self.is_running.load(Ordering::Acquire) && !self.is_running.swap(true, Ordering::AcqRel)
        {
            let (running, clock) = (Running(self.clone()), clock.clone());
            executor.spawn(async move { running.0.run(&clock).await });
        }
    }

    /// Runs until the manager ends, or until the task is dropped with its runtime.
    async fn run(&self, clock: &Clock) {
        let look = |now| match self.listener() {
            Some(listener) => listener.due(now, BATCHED_WITHIN),
            None => Ok(Vec::new()),
        };
        loop {
            let hints = tokio::select! {
                biased;
                // Timers come first, because frequent changes must not delay them. Batches are sent after either branch.
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

    /// Returns the next batch, which consists of the renewal with the nearest deadline and others with the same time-out,
    /// and that time-out. Returns `None` if nothing is due, or too many batches are in flight.
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

/// Clears the flag `is_running` when the task ends, for whatever reason.
struct Running(Arc<Ticking>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::Release);
        if let Some(listener) = self.0.listener() {
            listener.rouse_all();
        }
    }
}

/// Returns how long one try may take. It is a tenth of the ttl, but at least four round trips or 20 ms, and at most 500 ms.
/// On a network so slow that this is less than two round trips, it is two round trips, but at most a third of the ttl. The
/// first try is sent after a third of the ttl, so there is always time for a second one.
fn patience(ttl: Duration, round_trip: Duration) -> Duration {
    let enough = (round_trip * 4).max(Duration::from_millis(20));
    let slow = (round_trip * 2).min(ttl / 3);
    (ttl / 10)
        .max(enough)
        .min(Duration::from_millis(500))
        .max(slow)
}
