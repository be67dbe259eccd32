//! The executor of a manager's own work, which is the manager's I/O thread, or the caller's runtime.

use std::{io, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use crate::{
    moment::Moment,
    runtime::{Work, catch_panic::catch_panic, clock::Clock, io_thread::IoThread, polled_once},
};

/// The longest time for which a sleep that was dropped still occupies memory.
const LOOK_PAUSE: Duration = Duration::from_millis(250);

#[derive(Clone, Debug, Default)]
pub(crate) enum Executor {
    /// The caller's runtime, including its virtual time. Used by the in-memory backend.
    #[default]
    Caller,
    /// The manager's own thread, which no handler can block. Used for servers.
    Thread(Arc<IoThread>),
    #[cfg(feature = "simulation")]
    Simulated(Arc<dyn crate::runtime::simulation::Thread>),
}

impl Executor {
    /// Starts a thread for a manager.
    pub(crate) fn start_thread() -> io::Result<Self> {
        #[cfg(feature = "simulation")]
        if let Some(thread) = crate::runtime::simulation::ask(|world| world.start_thread()) {
            return Ok(Self::Simulated(thread));
        }
        Ok(Self::Thread(Arc::new(IoThread::start()?)))
    }

    /// Starts `work`. If one task starts several pieces of work, their first polls are in the same order.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.hand_over(Box::pin(work));
    }

    fn hand_over(&self, work: Work) {
        match self {
            Self::Caller => run_with_caller(work),
            Self::Thread(thread) => thread.spawn(work),
            #[cfg(feature = "simulation")]
            Self::Simulated(thread) => thread.spawn(work),
        }
    }

    /// Starts work that may be polled anywhere. The calling thread polls it once before it is spawned, which queues a
    /// request without delay. The work must not need the runtime of the calling thread.
    pub(crate) fn start(&self, work: impl Future<Output = ()> + Send + 'static) {
        let Some(work) = self.poll_here(Box::pin(work)) else {
            return;
        };
        #[cfg(test)]
        let Some(work) = crate::runtime::mutex::interleaved::spawn(work) else {
            return;
        };
        self.hand_over(work);
    }

    /// Starts work that no caller waits for, whose reply may therefore be processed a little later.
    pub(crate) fn start_patiently(&self, work: impl Future<Output = ()> + Send + 'static) {
        match (self, self.poll_here(Box::pin(work))) {
            (Self::Thread(thread), Some(work)) => thread.spawn_patiently(work),
            (_, Some(work)) => self.hand_over(work),
            (_, None) => {}
        }
    }

    /// Polls the work once on the calling thread. Returns the work if it has to be spawned.
    fn poll_here(&self, work: Work) -> Option<Work> {
        match self {
            // Spawning the work polls it here.
            Self::Caller => Some(work),
            Self::Thread(thread) => thread.poll_here(work),
            #[cfg(feature = "simulation")]
            Self::Simulated(_) => polled_once(work),
        }
    }

    /// Returns `true` if this is the runtime of the manager's thread.
    pub(crate) fn has_runtime(&self, id: tokio::runtime::Id) -> bool {
        matches!(self, Self::Thread(thread) if thread.has_runtime(id))
    }

    /// Returns `true` if the manager's work continues without the caller's runtime.
    pub(crate) fn has_own_thread(&self) -> bool {
        !matches!(self, Self::Caller)
    }

    /// Returns `true` if the manager's work continues while the calling thread is blocked. The work of a simulated thread
    /// does not.
    pub(crate) fn runs_while_caller_blocks(&self) -> bool {
        matches!(self, Self::Thread(_))
    }

    /// Runs `work` on this executor. The future may be polled anywhere, and dropping it does not stop the work.
    pub(crate) fn run<T, F>(&self, work: F) -> impl Future<Output = Option<T>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (sender, reply) = oneshot::channel();
        self.spawn(async move {
            // The receiver may have been dropped.
            drop(sender.send(work.await));
        });
        async move { reply.await.ok() }
    }

    /// Sleeps in a user's future, whatever polls it. The timers of tokio panic in a runtime that was built without a time
    /// driver, and do not exist under another executor. Therefore the timer runs on the manager's own thread if there is
    /// one, which then wakes the sleeper.
    ///
    /// Each sleep is a task there for as long as it lasts, and for at most [`LOOK_PAUSE`] after it was dropped. The acquire
    /// of a free lock does not sleep.
    pub(crate) async fn sleep_until(&self, clock: &Clock, moment: Moment) {
        if !self.has_own_thread() || clock.now() >= moment {
            return clock.sleep_until(moment).await;
        }
        let (sleeper, due) = oneshot::channel::<()>();
        let clock = clock.clone();
        self.spawn(async move {
            while !sleeper.is_closed() && clock.now() < moment {
                clock
                    .sleep_until(clock.now().after(LOOK_PAUSE).min(moment))
                    .await;
            }
            // Nothing needs to be sent, because the drop wakes the sleeper.
            catch_panic(|| drop(sleeper));
        });
        drop(due.await);
    }
}

/// Starts a task on the runtime of the running task. The new task continues even if the task that started it is dropped.
pub(crate) fn spawn_detached(work: impl Future<Output = ()> + Send + 'static) {
    #[cfg(feature = "simulation")]
    if crate::runtime::simulation::ask(|_| ()).is_some() {
        crate::runtime::simulation::ask(|world| world.spawn(Box::pin(work)));
        return;
    }
    drop(tokio::spawn(work));
}

/// Polls the work once, and spawns it if it is pending. The in-memory backend replies at once, so nearly all work ends in
/// that poll and needs no task.
fn run_with_caller(work: Work) {
    // The work must be polled inside a runtime, because creating a timer outside of one panics.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return run_on_a_thread(work);
    };
    let Some(work) = polled_once(work) else {
        return;
    };
    drop(runtime.spawn(work));
}

/// Runs work that was started outside of a runtime, such as the release by a guard that is dropped on a plain thread. This
/// is rare, so a thread for each is acceptable.
fn run_on_a_thread(work: Work) {
    let started = std::thread::Builder::new()
        .name("lock-core-work".to_owned())
        .spawn(move || {
            match tokio::runtime::Builder::new_current_thread().enable_time().build() {
                Ok(runtime) => runtime.block_on(work),
                Err(error) => tracing::warn!(%error, "no runtime for clean-up work: the locks to be released end with their ttl"),
            }
        });
    if let Err(error) = started {
        tracing::warn!(%error, "no thread for clean-up work: the locks to be released end with their ttl");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_that_does_not_wait_is_done_immediately() {
        let (sender, mut receiver) = oneshot::channel();
        Executor::Caller.spawn(async move {
            sender.send(7).expect("the receiver is alive");
        });
        assert_eq!(receiver.try_recv(), Ok(7));
    }

    #[test]
    fn work_is_done_even_without_a_runtime() {
        let (sender, receiver) = oneshot::channel();
        Executor::Caller.spawn(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            sender.send(7).expect("the receiver is alive");
        });
        assert_eq!(receiver.blocking_recv(), Ok(7));
    }

    #[test]
    fn a_sleep_ends_in_a_runtime_without_timers() {
        let executor = Executor::start_thread().expect("a thread");
        let clock = Clock::Boot;
        let until = clock.now().after(Duration::from_millis(5));
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(executor.sleep_until(&clock, until));
        assert!(clock.now() >= until);
    }
}
