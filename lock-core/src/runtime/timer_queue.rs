//! A timer queue: items with a due time, in order, for one task that waits for the next of them.
//!
//! Inserting and removing are cheap, and wake that task only if it would sleep too long. A busy lock sets and clears a timer half
//! a million times a second, and none of these timers comes due.

use std::{collections::BTreeMap, time::Duration};

use tokio::sync::Notify;

use crate::runtime::clock::{Clock, Moment};
use crate::runtime::mutex::Mutex;

/// The key of an entry; unique for the life of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerId {
    at: Moment,
    number: u64,
}

#[derive(Debug)]
pub(crate) struct TimerQueue<T> {
    timers: Mutex<Timers<T>>,
    /// Signalled when an entry was inserted that is due before the waiting task wakes.
    earlier: Notify,
}

#[derive(Debug)]
struct Timers<T> {
    entries: BTreeMap<TimerId, T>,
    next_number: u64,
    /// The moment that the waiting task sleeps to; `None` while it is awake, or sleeps because there is no entry.
    sleeps_to: Option<Moment>,
}

impl<T> TimerQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            timers: Mutex::new(Timers {
                entries: BTreeMap::new(),
                next_number: 0,
                sleeps_to: None,
            }),
            earlier: Notify::new(),
        }
    }

    /// Inserts an entry, and wakes the waiting task if it sleeps too long.
    pub(crate) fn insert(&self, at: Moment, item: T) -> TimerId {
        let (timer_id, is_earlier) = self.insert_quietly(at, item);
        if is_earlier {
            self.wake();
        }
        timer_id
    }

    /// Inserts an entry, and returns whether the waiting task may sleep too long. If so, the caller has to call
    /// [`wake`](Self::wake) after it has unlocked its mutexes.
    pub(crate) fn insert_quietly(&self, at: Moment, item: T) -> (TimerId, bool) {
        let mut timers = self.timers.lock();
        let timer_id = TimerId {
            at,
            number: timers.next_number,
        };
        timers.next_number += 1;
        timers.entries.insert(timer_id, item);
        let too_late = timers.sleeps_to.is_none_or(|moment| at < moment);
        (timer_id, too_late)
    }

    pub(crate) fn wake(&self) {
        self.earlier.notify_one();
    }

    /// Removes an entry; `None` if it came due before.
    pub(crate) fn remove(&self, timer_id: TimerId) -> Option<T> {
        self.timers.lock().entries.remove(&timer_id)
    }

    /// Waits until an entry is due, and takes it with all entries that are due within `ahead`; never an empty list.
    ///
    /// Meant for one waiting task. Dropping the future at its only await takes nothing.
    pub(crate) async fn due(&self, clock: &Clock, ahead: Duration) -> Vec<T> {
        loop {
            let sleeps_to = {
                let mut timers = self.timers.lock();
                let now = clock.now();
                let first = timers.entries.first_key_value();
                let next = first.map(|(timer_id, _)| timer_id.at);
                timers.sleeps_to = next.filter(|at| *at > now);
                if next.is_some_and(|at| at <= now) {
                    return take_until(&mut timers.entries, now.after(ahead));
                }
                next
            };
            match sleeps_to {
                None => self.earlier.notified().await,
                Some(moment) => {
                    tokio::select! {
                        biased;
                        () = clock.sleep_until(moment) => {}
                        () = self.earlier.notified() => {}
                    }
                }
            }
        }
    }
}

fn take_until<T>(entries: &mut BTreeMap<TimerId, T>, moment: Moment) -> Vec<T> {
    let mut due = Vec::new();
    while let Some(entry) = entries.first_entry()
        && entry.key().at <= moment
    {
        due.push(entry.remove());
    }
    due
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn entries_come_due_in_order_and_removed_ones_do_not() {
        let clock = Clock::tokio();
        let queue = TimerQueue::new();
        let start = clock.now();
        queue.insert(start.after(Duration::from_secs(2)), 'b');
        let removed = queue.insert(start.after(Duration::from_secs(1)), 'x');
        queue.insert(start.after(Duration::from_secs(1)), 'a');
        assert_eq!(queue.remove(removed), Some('x'));
        assert_eq!(queue.due(&clock, Duration::ZERO).await, ['a']);
        assert_eq!(queue.due(&clock, Duration::ZERO).await, ['b']);
        assert_eq!(clock.now().since(start), Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_nearly_due_comes_along_but_does_not_come_alone() {
        let clock = Clock::tokio();
        let queue = TimerQueue::new();
        let start = clock.now();
        for millis in [1000, 1010, 1030] {
            queue.insert(start.after(Duration::from_millis(millis)), millis);
        }
        let ahead = Duration::from_millis(20);
        assert_eq!(queue.due(&clock, ahead).await, [1000, 1010]);
        assert_eq!(clock.now().since(start), Duration::from_secs(1));
        assert_eq!(queue.due(&clock, ahead).await, [1030]);
        assert_eq!(clock.now().since(start), Duration::from_millis(1030));
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_entry_wakes_the_task_that_sleeps_to_a_later_one() {
        let clock = Clock::tokio();
        let queue = Arc::new(TimerQueue::new());
        let start = clock.now();
        queue.insert(start.after(Duration::from_secs(60)), "late");
        let waiting = tokio::spawn({
            let (queue, clock) = (queue.clone(), clock.clone());
            async move { queue.due(&clock, Duration::ZERO).await }
        });
        tokio::task::yield_now().await;
        queue.insert(start.after(Duration::from_secs(1)), "early");
        assert_eq!(waiting.await.expect("the task ends"), ["early"]);
        assert_eq!(clock.now().since(start), Duration::from_secs(1));
    }
}
