//! Which keys were contended lately.
//!
//! A key without contention is taken by plain commands, which cost the server half of what a script does. They cannot add an
//! entry to the queue, though: if the key is busy, that takes a second round trip. So for a key that was contended, the script is
//! sent at once.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::key::LockKey;

/// Some keys share a mark, which costs them speed and nothing else. Which ones is secret, as the hash of a key is, so that no client can
/// slow down another's key by choosing its own.
const MARKS: usize = 1024;

#[derive(Debug)]
pub(super) struct Contention(Box<[AtomicBool]>);

impl Default for Contention {
    fn default() -> Self {
        Self((0..MARKS).map(|_| AtomicBool::new(false)).collect())
    }
}

impl Contention {
    pub(super) fn of(&self, key: &LockKey) -> KeyMark<'_> {
        let mark = usize::try_from(key.hashed() % MARKS as u64);
        KeyMark(&self.0[mark.unwrap_or(0)])
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
