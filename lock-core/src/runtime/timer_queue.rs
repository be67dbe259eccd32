//! Lists of items that become due, and the sleep of the task that takes the items when they do.
//!
//! Inserting and removing are cheap, and wake that task only if it would sleep too long. A busy lock sets and clears a
//! timer half a million times a second, and none of these timers becomes due. Therefore a list has no mutex of its own: it
//! is stored with the objects to which its items refer, and there may be several lists.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::sync::Notify;

use crate::{moment::Moment, runtime::clock::Clock};

/// The key of an item, which is unique in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerId {
    at: Moment,
    number: u64,
}

/// A list of items, sorted by when they are due.
#[derive(Debug)]
pub(crate) struct TimerQueue<T> {
    items: BTreeMap<TimerId, T>,
    last_number: u64,
}

impl<T> Default for TimerQueue<T> {
    fn default() -> Self {
        Self {
            items: BTreeMap::new(),
            last_number: 0,
        }
    }
}

impl<T> TimerQueue<T> {
    /// Inserts an item. The caller must check [`Alarm::is_late_for`] before it unlocks the list.
    pub(crate) fn insert(&mut self, at: Moment, item: T) -> TimerId {
        self.last_number += 1;
        let timer_id = TimerId {
            at,
            number: self.last_number,
        };
        self.items.insert(timer_id, item);
        timer_id
    }

    /// Removes an item, or returns `None` if it has already been taken.
    pub(crate) fn remove(&mut self, timer_id: TimerId) -> Option<T> {
        self.items.remove(&timer_id)
    }

    /// Returns when the first item is due.
    fn next(&self) -> Option<Moment> {
        let (timer_id, _) = self.items.first_key_value()?;
        Some(timer_id.at)
    }

    /// Removes and returns the items that are due at this moment.
    fn remove_until(&mut self, moment: Moment) -> Vec<T> {
        let mut due = Vec::new();
        while let Some(item) = self.items.first_entry()
            && item.key().at <= moment
        {
            due.push(item.remove());
        }
        due
    }
}

/// The result of checking the lists: the items that are due, or when the next item is due, if there is one.
pub(crate) type Due<T> = Result<Vec<T>, Option<Moment>>;

/// Removes the items that are due from all lists, each of which `each` locks for a moment. If an item is due now, those
/// that are due within `ahead` are removed as well.
pub(crate) fn remove_due<T>(
    each: impl Fn(&mut dyn FnMut(&mut TimerQueue<T>)),
    now: Moment,
    ahead: Duration,
) -> Due<T> {
    let mut next: Option<Moment> = None;
    each(&mut |list| next = next.into_iter().chain(list.next()).min());
    if next.is_none_or(|next| next > now) {
        return Err(next);
    }
    let mut due = Vec::new();
    each(&mut |list| due.append(&mut list.remove_until(now.after(ahead))));
    Ok(due)
}

/// The sleep of the task that takes due items.
#[derive(Debug)]
pub(crate) struct Alarm {
    /// The moment until which the task sleeps, in nanoseconds. It is the largest value while the task is awake, or sleeps
    /// because there is no item.
    sleeps_to: AtomicU64,
    /// Signalled after an item was inserted that is due before the task would wake.
    earlier: Notify,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        Self {
            sleeps_to: AtomicU64::new(u64::MAX),
            earlier: Notify::new(),
        }
    }

    /// Returns `true` if the task may sleep too long for an item that was inserted. The caller must then call
    /// [`wake`](Self::wake) after it has unlocked its mutexes.
    pub(crate) fn is_late_for(&self, at: Moment) -> bool {
        at.as_nanos() < self.sleeps_to.load(Ordering::Acquire)
    }

    pub(crate) fn wake(&self) {
        self.earlier.notify_one();
    }

    /// Waits until `look` finds items that are due, and returns them.
    ///
    /// Only one task may call this. Dropping the future loses no item, since none is taken before an await.
    pub(crate) async fn due<T>(
        &self,
        clock: &Clock,
        mut look: impl FnMut(Moment) -> Due<T>,
    ) -> Vec<T> {
        loop {
            // Stored before the check. An insertion that the check misses happens later, and sees this value or the moment
            // below, both of which make it wake the task if necessary.
            self.sleeps_to.store(u64::MAX, Ordering::Release);
            match look(clock.now()) {
                Ok(due) => return due,
                Err(None) => self.earlier.notified().await,
                Err(Some(next)) => {
                    self.sleeps_to.store(next.as_nanos(), Ordering::Release);
                    tokio::select! {
                        biased;
                        () = clock.sleep_until(next) => {}
                        () = self.earlier.notified() => {}
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::JoinHandle;

    use super::*;
    use crate::runtime::mutex::Mutex;

    #[derive(Clone)]
    struct Timers(Arc<(Mutex<TimerQueue<&'static str>>, Alarm)>, Clock, Moment);

    impl Timers {
        fn new() -> Self {
            let (list, clock) = (Mutex::new(TimerQueue::default()), Clock::tokio());
            let start = clock.now();
            Self(Arc::new((list, Alarm::new())), clock, start)
        }

        fn insert(&self, after: u64, item: &'static str) -> TimerId {
            let (list, alarm) = &*self.0;
            let (at, mut list) = (self.2.after(Duration::from_secs(after)), list.lock());
            let timer_id = list.insert(at, item);
            if alarm.is_late_for(at) {
                alarm.wake();
            }
            timer_id
        }

        async fn due(&self) -> Vec<&'static str> {
            let (list, alarm) = &*self.0;
            let look = |now| remove_due(|with| with(&mut list.lock()), now, Duration::ZERO);
            alarm.due(&self.1, look).await
        }

        /// Spawns a task that sleeps until something is due.
        async fn sleeping(&self) -> JoinHandle<Vec<&'static str>> {
            let sleeping = self.clone();
            let sleeping = tokio::spawn(async move { sleeping.due().await });
            tokio::task::yield_now().await;
            sleeping
        }

        fn seconds(&self) -> u64 {
            self.1.now().since(self.2).as_secs()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn items_become_due_in_order_unless_they_are_removed() {
        let timers = Timers::new();
        timers.insert(2, "b");
        let removed = timers.insert(1, "x");
        timers.insert(1, "a");
        timers.insert(1, "a too");
        assert_eq!(timers.0.0.lock().remove(removed), Some("x"));
        assert_eq!(timers.due().await, ["a", "a too"]);
        assert_eq!(timers.due().await, ["b"]);
        assert_eq!(timers.seconds(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_item_wakes_a_task_that_sleeps_until_a_later_one() {
        let timers = Timers::new();
        timers.insert(60, "late");
        let sleeping = timers.sleeping().await;
        timers.insert(1, "early");
        assert_eq!(sleeping.await.expect("the task ends"), ["early"]);
        assert_eq!(timers.seconds(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_item_wakes_a_task_that_found_none() {
        let timers = Timers::new();
        let sleeping = timers.sleeping().await;
        timers.insert(5, "first");
        assert_eq!(sleeping.await.expect("the task ends"), ["first"]);
        assert_eq!(timers.seconds(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_inserted_during_the_check_wakes_the_task() {
        let timers = Timers::new();
        timers.insert(2, "first");
        assert_eq!(timers.due().await, ["first"]);
        timers.insert(60, "late");
        let (list, alarm) = &*timers.0;
        let mut is_first = true;
        let look = |now| {
            let found = remove_due(|with| with(&mut list.lock()), now, Duration::ZERO);
            if std::mem::take(&mut is_first) {
                timers.insert(5, "early");
            }
            found
        };
        assert_eq!(alarm.due(&timers.1, look).await, ["early"]);
        assert_eq!(timers.seconds(), 5);
    }

    #[test]
    fn items_that_are_nearly_due_are_taken_only_with_one_that_is_due() {
        let at = |millis| Moment::from_nanos(0).after(Duration::from_millis(millis));
        let lists = [[1000, 1030], [1010, 1020]].map(|each| {
            let mut list = TimerQueue::default();
            for millis in each {
                list.insert(at(millis), millis);
            }
            Mutex::new(list)
        });
        let look = |millis| {
            let each = |with: &mut dyn FnMut(&mut TimerQueue<u64>)| {
                for list in &lists {
                    with(&mut list.lock());
                }
            };
            remove_due(each, at(millis), Duration::from_millis(20))
        };
        assert_eq!(look(999), Err(Some(at(1000))));
        assert_eq!(look(1000), Ok(vec![1000, 1010, 1020]));
        assert_eq!(look(1029), Err(Some(at(1030))));
        assert_eq!(look(1030), Ok(vec![1030]));
        assert_eq!(look(1030), Err(None));
    }
}
