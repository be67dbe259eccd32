//! Which keys were contended lately.
//!
//! A key without contention is taken by plain commands, which cost the server half of what a script does. They cannot add an
//! entry to the queue, though: if the key is busy, that takes a second round trip. So for a key that was contended, the script is
//! sent at once.

use std::{
    hash::BuildHasher,
    sync::atomic::{AtomicBool, Ordering},
};

/// Some keys share a mark, which costs them speed and nothing else.
const MARKS: usize = 1024;

/// Which keys share a mark is secret, so that no client can slow down another's key by choosing its own.
#[cfg(not(feature = "simulation"))]
type Hasher = std::hash::RandomState;

/// In a simulation, the marks are the same each time.
#[cfg(feature = "simulation")]
type Hasher = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

#[derive(Debug)]
pub(super) struct Contention {
    hasher: Hasher,
    marks: Box<[AtomicBool]>,
}

impl Default for Contention {
    fn default() -> Self {
        Self {
            hasher: Hasher::default(),
            marks: (0..MARKS).map(|_| AtomicBool::new(false)).collect(),
        }
    }
}

impl Contention {
    pub(super) fn of(&self, full_key: &str) -> KeyMark<'_> {
        let hash = usize::try_from(self.hasher.hash_one(full_key) % MARKS as u64);
        KeyMark(&self.marks[hash.unwrap_or(0)])
    }
}

/// What is known of a key.
pub(super) struct KeyMark<'a>(&'a AtomicBool);

impl KeyMark<'_> {
    pub(super) fn is_expected(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes whether others wanted the key.
    pub(super) fn note(&self, others: bool) {
        // The mark mostly stays as it is, and a write would remove it from the caches of other threads.
        if self.0.load(Ordering::Relaxed) != others {
            self.0.store(others, Ordering::Relaxed);
        }
    }
}
