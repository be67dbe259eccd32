//! Sleeping in a user's future, whatever executor polls it.
//!
//! tokio's timers panic in a runtime that was built without a time driver, and do not exist under another executor. A manager with
//! a thread of its own runs the timers there and only wakes the sleeper.

use std::sync::Arc;
#[cfg(feature = "redis")]
use std::{future::Future, time::Duration};

use tokio::sync::oneshot;

#[cfg(feature = "redis")]
use crate::runtime::{catch_panic::catch_panic, timer_queue};
use crate::runtime::{
    clock::{Clock, Moment},
    mutex::Mutex,
    timer_queue::{Alarm, TimerId, TimerQueue},
};

#[derive(Clone, Debug)]
pub(crate) struct Timer {
    clock: Clock,
    /// The sleepers that the manager's thread wakes; `None` if the timers of the caller's tokio runtime are used.
    sleepers: Option<Arc<Sleepers>>,
}

#[derive(Debug)]
struct Sleepers {
    queue: Mutex<TimerQueue<oneshot::Sender<()>>>,
    alarm: Alarm,
}

impl Timer {
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Sleeps on the timers of the runtime that polls the sleep.
    pub(crate) fn of_the_caller(clock: Clock) -> Self {
        Self {
            clock,
            sleepers: None,
        }
    }

    /// Sleeps until `ring`, which must run on the manager's thread, wakes the sleeper.
    #[cfg(feature = "redis")]
    pub(crate) fn of_a_thread(clock: Clock) -> Self {
        Self {
            clock,
            sleepers: Some(Arc::new(Sleepers {
                queue: Mutex::default(),
                alarm: Alarm::new(),
            })),
        }
    }

    /// Wakes sleepers for ever. Holds only the list of them, so it does not keep the manager alive.
    #[cfg(feature = "redis")]
    pub(crate) fn ring(&self) -> impl Future<Output = ()> + Send + use<> {
        let Self { clock, sleepers } = self.clone();
        async move {
            let Some(sleepers) = sleepers else { return };
            let look = |now| {
                timer_queue::look(|with| with(&mut sleepers.queue.lock()), now, Duration::ZERO)
            };
            loop {
                for sleeper in sleepers.alarm.due(&clock, look).await {
                    catch_panic(|| drop(sleeper));
                }
            }
        }
    }

    pub(crate) async fn sleep_until(&self, moment: Moment) {
        let Some(sleepers) = &self.sleepers else {
            return self.clock.sleep_until(moment).await;
        };
        if self.clock.now() >= moment {
            return;
        }
        let (sleeper, due) = oneshot::channel();
        let (timer_id, is_late) = {
            let mut queue = sleepers.queue.lock();
            let timer_id = queue.insert(moment, sleeper);
            (timer_id, sleepers.alarm.is_late_for(moment))
        };
        if is_late {
            sleepers.alarm.wake();
        }
        let _entry = SleepersEntry { sleepers, timer_id };
        // Nothing is sent: the thread drops the sender.
        drop(due.await);
    }
}

/// The entry of a sleeper. It is removed with the sleep.
struct SleepersEntry<'a> {
    sleepers: &'a Sleepers,
    timer_id: TimerId,
}

impl Drop for SleepersEntry<'_> {
    fn drop(&mut self) {
        drop(self.sleepers.queue.lock().remove(self.timer_id));
    }
}
