//! The back-off that keeps several servers fair. They send no message when a lock is released, so waiters poll, and a process
//! that releases and asks again at once would always be first. Therefore the servers remember for a moment which process asked.
//! A process that learns this while it has the lock leaves the lock alone for about one polling pause after its release.

use std::{collections::HashMap, sync::Arc};

use crate::{moment::Moment, runtime::mutex::Mutex};

/// The keys that others should get first, and until when.
#[derive(Debug, Default)]
pub(super) struct BackOff(Mutex<HashMap<Arc<str>, Moment>>);

impl BackOff {
    /// Begins the back-off of a key, which lasts until then. Entries that are over are removed; each lasts only for a
    /// moment, so there are few.
    pub(super) fn begin(&self, full_key: &Arc<str>, until: Moment, now: Moment) {
        let mut keys = self.0.lock();
        keys.retain(|_, until| now < *until);
        keys.insert(full_key.clone(), until);
    }

    /// Removes the back-off of a key, if there is one, and returns when it ends.
    pub(super) fn end(&self, full_key: &str) -> Option<Moment> {
        self.0.lock().remove(full_key)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_expired_back_off_takes_no_memory() {
        let back_off = BackOff::default();
        for number in 0..10_000_u32 {
            let now = Moment::from_nanos(0).after(Duration::from_millis(1) * number);
            let until = now.after(Duration::from_millis(50));
            back_off.begin(&number.to_string().into(), until, now);
        }
        assert_eq!(back_off.0.lock().len(), 50);
        assert!(back_off.end("9999").is_some() && back_off.end("9999").is_none());
    }
}
