//! The states of all keys that this process holds or waits for.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasherDefault, Hasher},
    sync::{Arc, MutexGuard},
    task::Waker,
    time::Duration,
};

use crate::{
    backend::owner::Owner,
    driver::{
        acquire_in_flight::AcquireInFlight, lease_state::LeaseState,
        release_in_flight::ReleaseInFlight,
    },
    engine::{event::Outcome, key_state::KeyState, transition::Action},
    error::KnownHolder,
    key::LockKey,
    mode::RequestKind,
    moment::Moment,
    runtime::{
        mutex::Mutex,
        tally::{Open, Tally},
        timer_queue::{TimerId, TimerQueue},
    },
};

pub(super) type LiveState = KeyState<Waker, Arc<LeaseState>, Arc<Owner>>;
pub(super) type StateAction = Action<Waker, Arc<LeaseState>, Arc<Owner>>;
pub(super) type LiveOutcome = Outcome<Arc<LeaseState>, Arc<Owner>>;

pub(super) type Timers = TimerQueue<(LockKey, RequestKind)>;
pub(super) type Entries = HashMap<LockKey, Box<KeyEntry>, BuildHasherDefault<HashOfKey>>;

/// A hasher that passes on the hash that a key has computed already.
#[derive(Default)]
pub(super) struct HashOfKey(u64);

impl Hasher for HashOfKey {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    /// Required by the trait. Keys call only `write_u64`.
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes
            .iter()
            .fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// All keys, divided into parts that each have a mutex, so that threads with different keys seldom wait for each other.
#[derive(Default)]
pub(crate) struct Keys([Mutex<KeyMap>; PARTS]);

/// The maximum number of leases that `also_held` examines. Few processes that acquire locks inside locks hold more.
const MOST_LOOKED_AT: usize = 64;

/// The number of parts, which is larger than the number of threads of most processes.
const PARTS: usize = 32;

impl Keys {
    /// Locks the part that has the entries of this key, in all modes.
    pub(super) fn of(&self, key: &LockKey) -> MutexGuard<'_, KeyMap> {
        let part = usize::try_from((key.hashed() >> 32) % PARTS as u64);
        self.0[part.unwrap_or(0)].lock()
    }

    /// Locks each part, one after the other.
    pub(super) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, KeyMap>> {
        self.0.iter().map(Mutex::lock)
    }

    /// Returns all keys. They are sorted, because the order in the maps differs from run to run.
    pub(super) fn all(&self) -> Vec<(LockKey, RequestKind)> {
        let mut all = Vec::new();
        for mut keys in self.each() {
            for kind in RequestKind::ALL {
                all.extend(keys.of(kind).keys().map(|key| (key.clone(), kind)));
            }
        }
        all.sort();
        all
    }

    /// Returns `true` after a shutdown, when no task may wait any more.
    pub(crate) fn are_closed(&self) -> bool {
        self.each().any(|keys| keys.is_closed)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.each().all(|keys| keys.is_empty())
    }

    #[cfg(feature = "testing")]
    pub(crate) fn is_held(&self, key: &LockKey) -> bool {
        self.of(key).each(key).any(|entry| entry.state.is_held())
    }

    /// Returns how many tasks wait for a key, and in how many modes.
    pub(crate) fn waiters(&self, key: &LockKey) -> (usize, usize) {
        let keys = self.of(key);
        let each = keys.each(key).map(|entry| entry.state.waiters());
        let waiting = each.filter(|waiters| *waiters > 0);
        waiting.fold((0, 0), |(tasks, modes), waiters| {
            (tasks + waiters, modes + 1)
        })
    }

    /// Returns what this process knows about the holder of a busy lock.
    pub(crate) fn busy(&self, key: &LockKey, now: Moment) -> KnownHolder {
        let keys = self.of(key);
        let mut leases = keys.each(key).flat_map(|entry| entry.state.each_lease());
        let lease = leases.next().cloned();
        drop(leases);
        drop(keys);
        KnownHolder {
            held_by: lease.map(|lease| lease.held_by(now)),
            typical_hold: self.typical_hold(key),
        }
    }

    /// Returns a key that the running task holds by a guard, other than those that it wants. The result is only used for
    /// advice in an error message, so not all leases are examined.
    pub(crate) fn also_held(&self, is_wanted: impl Fn(&LockKey) -> bool) -> Option<LockKey> {
        let mut left = MOST_LOOKED_AT;
        self.each().find_map(|mut keys| {
            let leases = keys.all_mut().flat_map(|entry| entry.state.each_lease());
            let mut others = leases.take(left).inspect(|_| left -= 1);
            let found = others.find(|lease| lease.is_of_this_task() && !is_wanted(&lease.key));
            found.map(|lease| lease.key.clone())
        })
    }

    /// Returns the number of leases that tasks hold now, and the time until the first of them ends, unless it is renewed.
    pub(super) fn held(&self, now: Moment) -> (usize, Option<Duration>) {
        let (mut held, mut first_ends_in) = (0, None);
        for mut keys in self.each() {
            let ends = keys.all_mut().flat_map(|entry| entry.state.ends());
            for end in ends.filter(|end| *end > now) {
                let left = end.since(now);
                held += 1;
                first_ends_in = Some(first_ends_in.map_or(left, |first: Duration| first.min(left)));
            }
        }
        (held, first_ends_in)
    }

    /// Takes the wakers of all waiters, and returns them with all leases that tasks hold.
    pub(super) fn observers(&self) -> (Vec<Waker>, Vec<Arc<LeaseState>>) {
        let (mut wakers, mut leases) = (Vec::new(), Vec::new());
        for mut keys in self.each() {
            for entry in keys.all_mut() {
                wakers.extend(entry.state.take_wakers());
                leases.extend(entry.state.each_lease().cloned());
            }
        }
        (wakers, leases)
    }

    /// Returns how long keys of the same template have recently been held, from the key's own part, or else from any other
    /// part that knows it.
    fn typical_hold(&self, key: &LockKey) -> Option<Duration> {
        let template = key.template()?;
        let own = self.of(key).typical_holds.get(template).copied();
        own.or_else(|| {
            self.each()
                .find_map(|part| part.typical_holds.get(template).copied())
        })
    }
}

/// The keys of one part.
#[derive(Default)]
pub(super) struct KeyMap {
    /// The entries for each [`RequestKind`]: see [`KeyMap::of`]. They are boxed, so that a removed entry can be dropped
    /// after the mutex is unlocked without being copied.
    entries: [Entries; 4],
    /// How long keys of each template have recently been held. The map is bounded, because a program has a fixed number of
    /// templates.
    typical_holds: HashMap<&'static str, Duration>,
    /// The timers that the states have armed, at most one for each entry: a new one replaces the previous one.
    pub(super) timers: Timers,
    /// `true` after a shutdown, when no task may wait any more.
    pub(super) is_closed: bool,
}

impl KeyMap {
    pub(super) fn of(&mut self, kind: RequestKind) -> &mut Entries {
        &mut self.entries[kind as usize]
    }

    /// Returns the entries of this kind, and the timers of all entries of the part.
    pub(super) fn with_timers(&mut self, kind: RequestKind) -> (&mut Entries, &mut Timers) {
        (&mut self.entries[kind as usize], &mut self.timers)
    }

    /// Creates the entry of a key if there is none.
    pub(super) fn begin(&mut self, key: &LockKey, kind: RequestKind, in_progress: &Arc<Tally>) {
        if let Entry::Vacant(place) = self.of(kind).entry(key.clone()) {
            place.insert(Box::new(KeyEntry {
                state: LiveState::new(kind),
                request: None,
                releasing: None,
                timer: None,
                _in_progress: in_progress.open(),
            }));
        }
    }

    /// Removes an entry that is no longer needed. The caller must drop it after unlocking the mutex.
    pub(super) fn remove(&mut self, key: &LockKey, kind: RequestKind) -> Option<Box<KeyEntry>> {
        let mut ended = self.of(kind).remove(key)?;
        if let Some(timer) = ended.timer.take() {
            self.timers.remove(timer);
        }
        Some(ended)
    }

    /// Returns the entries of a key, in all modes.
    pub(super) fn each(&self, key: &LockKey) -> impl Iterator<Item = &KeyEntry> {
        self.entries
            .iter()
            .filter_map(move |entries| entries.get(key).map(|entry| &**entry))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.iter().all(HashMap::is_empty)
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut KeyEntry> {
        let entries = self.entries.iter_mut().flat_map(HashMap::values_mut);
        entries.map(|entry| &mut **entry)
    }

    /// Updates a moving average, in which the last eight holds have two thirds of the weight.
    pub(super) fn note_hold(&mut self, template: &'static str, held: Duration) {
        let typical = self.typical_holds.entry(template).or_insert(held);
        *typical = *typical / 8 * 7 + held / 8;
    }
}

pub(super) struct KeyEntry {
    pub(super) state: LiveState,
    /// The request in flight that a task polls.
    pub(super) request: Option<Arc<AcquireInFlight>>,
    /// The last release of a lease, until its reply arrives. The next request is sent after the release.
    pub(super) releasing: Option<Arc<ReleaseInFlight>>,
    pub(super) timer: Option<TimerId>,
    /// Keeps a shutdown waiting until the entry is dropped.
    pub(super) _in_progress: Open,
}

impl KeyEntry {
    /// Returns `true` if the entry is no longer needed.
    pub(super) fn is_over(&self) -> bool {
        self.state.is_over() && self.releasing.is_none()
    }
}
