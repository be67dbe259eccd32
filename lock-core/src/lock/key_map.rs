//! The states of all keys that this process wants or holds.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::{Arc, MutexGuard},
    task::Waker,
    time::Duration,
};

use crate::{
    key::LockKey,
    lock::{
        key_state::{Action, KeyState, Transition, server_lease::ServerLease},
        lease_state::LeaseState,
        requests::{acquire_in_flight::AcquireInFlight, release_in_flight::ReleaseInFlight},
    },
    mode::LockMode,
    runtime::{mutex::Mutex, tally::Open, timer_queue::TimerId},
    store::owner::Owner,
};

pub(super) type LiveLease = ServerLease<Waker, Arc<LeaseState>, Arc<Owner>>;
pub(super) type LiveState = KeyState<Waker, Arc<LeaseState>, Arc<Owner>>;
pub(super) type StateAction = Action<Waker, Arc<LeaseState>, Arc<Owner>>;
pub(super) type StateTransition<'a> = Transition<'a, Waker, Arc<LeaseState>, Arc<Owner>>;

pub(super) type Entries = HashMap<LockKey, Box<KeyEntry>, BuildHasherDefault<HashOfKey>>;

/// Takes the hash that a key has.
#[derive(Default)]
pub(super) struct HashOfKey(u64);

impl Hasher for HashOfKey {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    /// For values that are no keys.
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes
            .iter()
            .fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// All keys, in parts with a mutex each, so that two threads with different keys seldom wait for each other.
#[derive(Default)]
pub(super) struct Keys([Mutex<KeyMap>; PARTS]);

/// More than the threads that a process has on most machines.
const PARTS: usize = 32;

impl Keys {
    /// The part of a key. It has the entries of this key in all modes.
    pub(super) fn of(&self, key: &LockKey) -> MutexGuard<'_, KeyMap> {
        let part = usize::try_from((key.hashed() >> 32) % PARTS as u64);
        self.0[part.unwrap_or(0)].lock()
    }

    /// Each part, one after the other.
    pub(super) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, KeyMap>> {
        self.0.iter().map(Mutex::lock)
    }

    /// How long the keys of this template were held lately, as far as it is known of a part: first of that of the key.
    pub(super) fn typical_hold(&self, key: &LockKey) -> Option<Duration> {
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
    /// The entries of exclusive locks, of shared locks, and of locks with permits: see [`KeyMap::of`]. Boxed, so that a removed entry
    /// is dropped after the mutex is free without being copied.
    entries: [Entries; 3],
    /// How long keys of each template were held lately. A program has a fixed number of templates.
    typical_holds: HashMap<&'static str, Duration>,
    /// After a shutdown no task may wait any more.
    pub(super) is_closed: bool,
}

impl KeyMap {
    pub(super) fn of(&mut self, kind: LockMode) -> &mut Entries {
        &mut self.entries[kind as usize]
    }

    pub(super) fn get_mut(&mut self, key: &LockKey, kind: LockMode) -> Option<&mut KeyEntry> {
        self.of(kind).get_mut(key).map(|entry| &mut **entry)
    }

    /// The entries of a key, in all modes.
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

    /// A moving average, in which the last eight holds have two thirds of the weight.
    pub(super) fn note_hold(&mut self, key: &LockKey, held: Duration) {
        if let Some(template) = key.template() {
            let typical = self.typical_holds.entry(template).or_insert(held);
            *typical = *typical / 8 * 7 + held / 8;
        }
    }
}

pub(super) struct KeyEntry {
    pub(super) state: LiveState,
    /// The request in flight that a task polls.
    pub(super) request: Option<Arc<AcquireInFlight>>,
    /// The last release of this process, until it has its answer: the next request is sent behind the release.
    pub(super) releasing: Option<ReleaseInFlight>,
    pub(super) timer: Option<TimerId>,
    /// A shutdown waits until this is dropped.
    pub(super) _in_progress: Open,
}

impl KeyEntry {
    /// Whether nothing is left to do.
    pub(super) fn is_over(&self) -> bool {
        self.state.is_over() && self.releasing.is_none()
    }
}
