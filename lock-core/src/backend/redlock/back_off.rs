//! The back-off that keeps several servers fair. They send no message when a lock is released: waiters poll. A process that
//! releases and acquires again at once would always come first. So the servers remember for a moment which process polled. A
//! process that learns this while it has the lock waits for about one polling pause before it requests the lock again.

use std::{collections::HashMap, sync::Arc, time::Duration};

use crate::{moment::Moment, runtime::mutex::Mutex};

/// An older mark says nothing about the current waiters.
const FRESH: Duration = Duration::from_secs(5);

/// Stale entries are swept when there are this many more than after the last sweep.
const SWEEP_EACH: usize = 256;

#[derive(Debug, Default)]
pub(super) struct BackOff(Mutex<PolledKeys>);

#[derive(Debug, Default)]
struct PolledKeys {
    last: HashMap<Arc<str>, Moment>,
    sweep_at: usize,
}

impl BackOff {
    /// Notes that another process requested a key that this process has.
    pub(super) fn note(&self, full_key: &Arc<str>, now: Moment) {
        let mut polled = self.0.lock();
        if polled.last.len() >= polled.sweep_at {
            polled.last.retain(|_, at| now.since(*at) < FRESH);
            polled.sweep_at = polled.last.len() + SWEEP_EACH;
        }
        polled.last.insert(full_key.clone(), now);
    }

    /// Whether another process is to be let in first. True once for each time that one polled.
    pub(super) fn is_due(&self, full_key: &str, now: Moment) -> bool {
        let noted = self.0.lock().last.remove(full_key);
        noted.is_some_and(|at| now.since(at) < FRESH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_is_let_in_once_for_each_of_its_requests() {
        let back_off = BackOff::default();
        let start = Moment::from_nanos(0);
        let (one, two): (Arc<str>, Arc<str>) = ("one".into(), "two".into());
        back_off.note(&one, start);
        assert!(!back_off.is_due(&two, start));
        assert!(back_off.is_due(&one, start) && !back_off.is_due(&one, start));
        back_off.note(&one, start);
        assert!(!back_off.is_due(&one, start.after(FRESH)));
    }

    #[test]
    fn what_is_stale_takes_no_room() {
        let back_off = BackOff::default();
        for number in 0..10_000_u32 {
            let now = Moment::from_nanos(0).after(Duration::from_millis(100) * number);
            back_off.note(&number.to_string().into(), now);
        }
        assert!(back_off.0.lock().last.len() <= SWEEP_EACH + 50);
    }
}
