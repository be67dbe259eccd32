//! What every part of a manager shares: the backend, the thread and the clock it works with, the renewal.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tokio::sync::{Notify, oneshot};

use crate::{
    alarm::Alarm,
    backend::{Answer, Backend},
    clock::{Clock, Moment},
    error::LockError,
    grants::Grants,
    process::OriginProcess,
    renewal::Renewal,
    spawner::Spawner,
    token::{FencingToken, OwnerTokens},
};

pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) spawner: Spawner,
    pub(crate) clock: Clock,
    pub(crate) alarm: Alarm,
    pub(crate) renewal: Renewal,
    pub(crate) grants: Arc<Grants>,
    pub(crate) timing: Timing,
    pub(crate) owner_tokens: OwnerTokens,
    /// What is inherited by a fork is refused: see [`check_process`](Self::check_process).
    origin: OriginProcess,
    /// Leases held. A shutdown waits for them, and for what is on its way: acquires and releases.
    pub(crate) held: Arc<Tally>,
    pub(crate) on_its_way: Arc<Tally>,
    /// The largest fencing token that this manager has seen; each new one must be larger.
    known_fencing: AtomicU64,
}

/// Bounds on how long things take. See the setters of the builder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) polling_pause: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            command_timeout: Duration::from_secs(1),
            polling_pause: Duration::from_millis(50),
        }
    }
}

impl Timing {
    pub(crate) fn check(self) -> Result<(), LockError> {
        let bounds = [
            (
                "connect_timeout",
                self.connect_timeout,
                Duration::from_millis(10),
            ),
            (
                "command_timeout",
                self.command_timeout,
                Duration::from_millis(10),
            ),
            (
                "polling_pause",
                self.polling_pause,
                Duration::from_millis(1),
            ),
        ];
        let most = Duration::from_secs(60);
        for (name, value, least) in bounds {
            if value < least || value > most {
                return Err(LockError::invalid(format!(
                    "{name} is {value:?}: choose between {least:?} and {most:?}"
                )));
            }
        }
        Ok(())
    }
}

impl Engine {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        grants: Arc<Grants>,
        spawner: Spawner,
        clock: Clock,
        alarm: Alarm,
        timing: Timing,
    ) -> Self {
        Self {
            renewal: Renewal::new(
                backend.clone(),
                grants.clone(),
                spawner.clone(),
                clock.clone(),
            ),
            backend,
            grants,
            spawner,
            clock,
            alarm,
            timing,
            owner_tokens: OwnerTokens::of_this_process(),
            origin: OriginProcess::this_process(),
            held: Arc::default(),
            on_its_way: Arc::default(),
            known_fencing: AtomicU64::new(0),
        }
    }

    /// Whether this is the process that made the manager, as with [`OriginProcess::is_here_at`]. `now` is of the manager's clock.
    pub(crate) fn is_here_at(&self, now: Moment) -> bool {
        self.origin.is_here_at(match self.clock {
            Clock::Boot => now,
            // It may be virtual.
            Clock::Tokio(_) => Clock::Boot.now(),
        })
    }

    pub(crate) fn is_here(&self) -> bool {
        self.origin.is_here_at(Clock::Boot.now())
    }

    /// Refuses to do anything in a process that was forked from the one that made the manager. Called before anything else: a
    /// lock below may have been taken by a thread that the child does not have.
    pub(crate) fn check_process(&self) -> Result<(), LockError> {
        if self.is_here() {
            Ok(())
        } else {
            Err(forked())
        }
    }

    /// Has a question answered where the manager's work runs.
    ///
    /// Dropping the future does not take the question back.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn Backend) -> Answer<T>,
    ) -> Result<T, LockError> {
        self.check_process()?;
        let (sender, answer) = oneshot::channel();
        let question = question(&*self.backend);
        self.spawner.spawn(async move {
            // Nobody listens any more: then nobody needs the answer.
            drop(sender.send(question.await));
        });
        let mut answer = pin!(answer);
        let answer = poll_fn(|context| -> Poll<Result<_, LockError>> {
            // In a child that was forked meanwhile it never comes.
            self.check_process()?;
            answer.as_mut().poll(context).map(Ok)
        });
        match answer.await? {
            Ok(answer) => answer.map_err(LockError::from),
            Err(_) => Err(LockError::unavailable(
                "the runtime that the question was asked on has ended",
            )),
        }
    }

    /// Waits until nothing is held or on its way, if only for a moment.
    pub(crate) async fn emptied(&self) {
        // What is on its way may become a held lease, and a held lease a release on its way.
        while self.held.count() + self.on_its_way.count() > 0 {
            self.held.emptied().await;
            self.on_its_way.emptied().await;
        }
    }

    /// Waits for `event`, at most for `time`; returns whether it came.
    pub(crate) async fn within(&self, time: Duration, event: impl Future<Output = ()>) -> bool {
        tokio::select! {
            biased;
            () = event => true,
            () = self.alarm.sleep_until(self.clock.now().after(time)) => false,
        }
    }

    pub(crate) fn known_fencing(&self) -> u64 {
        self.known_fencing.load(Ordering::Acquire)
    }

    pub(crate) fn learn_fencing(&self, token: FencingToken) {
        self.known_fencing.fetch_max(token.into(), Ordering::AcqRel);
    }
}

impl Drop for Engine {
    /// In a forked child nothing below is taken apart: to close a connection or to end a thread is to write to what the
    /// parent has, too.
    fn drop(&mut self) {
        if !self.origin.is_here() {
            mem::forget((self.backend.clone(), self.spawner.clone()));
        }
    }
}

pub(crate) fn forked() -> LockError {
    LockError::unavailable(
        "this process was forked from the one that made this lock manager, which works only there: make another one after the fork",
    )
}

/// Until when a lease is certain that was asked for at `sent`: minus 1 % of the ttl and 2 ms, because the server's clock
/// may run faster than ours and its timer may be early.
pub(crate) fn validity(sent: Moment, ttl: Duration) -> Moment {
    sent.after(ttl.saturating_sub(ttl / 100 + Duration::from_millis(2)))
}

/// Between 0.5 and 1.5 of `span`, so that those who were stopped together do not ask together again.
pub(crate) fn jittered(span: Duration) -> Duration {
    let fraction = u32::try_from(scattered() >> 48).unwrap_or(0);
    span / 2 + span.saturating_mul(fraction) / 0x1_0000
}

/// A number that looks random, by Steele and Vigna's `SplitMix64`. For pauses; nothing secret comes from here.
fn scattered() -> u64 {
    static STATE: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(std::process::id().into()));
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    #[cfg(feature = "simulation")]
    if let Some(number) = crate::simulation::ask(|world| world.random()) {
        return number;
    }
    // Processes that were started together differ by their ids, hosts by when they start to count, and a forked child from its
    // parent by the clock: they do not ask in the same nanosecond.
    let mut z = STATE.fetch_add(STEP, Ordering::Relaxed) ^ Clock::Boot.now().as_nanos();
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Counts what is open and tells when it is all closed.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    count: AtomicUsize,
    emptied: Notify,
}

/// One open thing; closes when dropped.
#[derive(Debug)]
pub(crate) struct Open(Arc<Tally>);

impl Tally {
    pub(crate) fn open(self: &Arc<Self>) -> Open {
        self.count.fetch_add(1, Ordering::AcqRel);
        Open(self.clone())
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until nothing is open, if only for a moment.
    pub(crate) async fn emptied(&self) {
        let mut emptied = std::pin::pin!(self.emptied.notified());
        loop {
            // Listening before looking: the last one may close between the two.
            emptied.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            emptied.as_mut().await;
            emptied.set(self.emptied.notified());
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.emptied.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allowance_for_drift_never_goes_below_the_moment_of_sending() {
        let sent = Moment::from_nanos(1_000_000_000);
        assert_eq!(validity(sent, Duration::ZERO), sent);
        let valid = validity(sent, Duration::from_secs(10)).since(sent);
        assert_eq!(valid, Duration::from_millis(9_898));
    }

    #[test]
    fn jitter_stays_within_half_and_one_and_a_half() {
        let span = Duration::from_millis(100);
        let all: Vec<_> = (0..1000).map(|_| jittered(span)).collect();
        assert!(
            all.iter().all(|d| (span / 2..span * 3 / 2).contains(d)),
            "{all:?}"
        );
        assert!(all.iter().any(|d| *d < span) && all.iter().any(|d| *d > span));
    }
}
