//! Sleeping in a user's future, whatever executor polls it.
//!
//! tokio's timers panic in a runtime that was built without a time driver, and do not exist under another executor. A manager with
//! a thread of its own runs the timers there and only wakes the sleeper.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::runtime::{
    clock::{Clock, Moment},
    timer_queue::{TimerId, TimerQueue},
};

#[derive(Clone, Debug)]
pub(crate) struct Timer {
    clock: Clock,
    /// The sleepers that the manager's thread wakes; `None` if the timers of the caller's tokio runtime are used.
    sleepers: Option<Arc<Sleepers>>,
}

#[derive(Debug)]
struct Sleepers {
    clock: Clock,
    wakers: TimerQueue<Waker>,
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
        let sleepers = Sleepers {
            clock: clock.clone(),
            wakers: TimerQueue::new(),
        };
        Self {
            clock,
            sleepers: Some(Arc::new(sleepers)),
        }
    }

    /// Wakes sleepers for ever. Holds only the list of them, so it does not keep the manager alive.
    #[cfg(feature = "redis")]
    pub(crate) fn ring(&self) -> impl Future<Output = ()> + Send + use<> {
        let sleepers = self.sleepers.clone();
        async move {
            let Some(sleepers) = sleepers else { return };
            loop {
                let due = sleepers
                    .wakers
                    .due(&sleepers.clock, std::time::Duration::ZERO);
                for sleeper in due.await {
                    crate::runtime::catch_panic::catch_panic(|| sleeper.wake());
                }
            }
        }
    }

    pub(crate) fn sleep_until(&self, moment: Moment) -> Sleep {
        let Some(sleepers) = self.sleepers.clone() else {
            let clock = self.clock.clone();
            return Sleep::OnTokio(Box::pin(async move { clock.sleep_until(moment).await }));
        };
        Sleep::OnThread(RegisteredSleep {
            moment,
            sleepers,
            registration: None,
        })
    }
}

pub(crate) enum Sleep {
    OnTokio(Pin<Box<dyn Future<Output = ()> + Send>>),
    OnThread(RegisteredSleep),
}

pub(crate) struct RegisteredSleep {
    moment: Moment,
    sleepers: Arc<Sleepers>,
    registration: Option<(TimerId, Waker)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.get_mut() {
            Self::OnTokio(timer) => timer.as_mut().poll(context),
            Self::OnThread(sleep) => sleep.poll(context),
        }
    }
}

impl RegisteredSleep {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.sleepers.clock.now() >= self.moment {
            return Poll::Ready(());
        }
        if self
            .registration
            .as_ref()
            .is_some_and(|(_, waker)| waker.will_wake(context.waker()))
        {
            return Poll::Pending;
        }
        self.leave();
        let timer_id = self
            .sleepers
            .wakers
            .insert(self.moment, context.waker().clone());
        self.registration = Some((timer_id, context.waker().clone()));
        Poll::Pending
    }

    fn leave(&mut self) {
        if let Some((timer_id, _)) = self.registration.take() {
            self.sleepers.wakers.remove(timer_id);
        }
    }
}

impl Drop for RegisteredSleep {
    fn drop(&mut self) {
        self.leave();
    }
}
