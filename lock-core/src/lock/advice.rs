//! What the error of a busy lock advises a task that holds another lock.

use std::sync::Arc;

use crate::{
    key::LockKey,
    lock::{reentry, registry::Registry},
};

/// The most leases that are looked at. Few processes that take locks inside locks hold more, and it is only advice.
const MOST: usize = 64;

impl Registry {
    /// Another key that the running task holds: by a body, or by a guard.
    pub(crate) fn held_beside(
        self: &Arc<Self>,
        is_wanted: impl Fn(&LockKey) -> bool,
    ) -> Option<LockKey> {
        if let Some(key) = reentry::another_key(self, &is_wanted) {
            return Some(key);
        }
        let mut left = MOST;
        self.keys.each().find_map(|mut keys| {
            let leases = keys.all_mut().flat_map(|entry| entry.state.each_lease());
            let mut others = leases.take(left).inspect(|_| left -= 1);
            let found = others.find(|lease| lease.is_of_this_task() && !is_wanted(&lease.key));
            found.map(|lease| lease.key.clone())
        })
    }
}
