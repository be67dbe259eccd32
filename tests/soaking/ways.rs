//! The ways to take a lock and to release it, on purpose or not.

use std::{
    io,
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use lock_core::{Lease, LockError, LockGuard, LockOptions};
use lock_tests::{Random, history::Step};
use tokio::{task::yield_now, time::sleep};

use crate::{
    attempt::Attempt,
    contend::{Contender, say},
    keys::{Kept, LONG_HOLD, MAX_HOLD, Use},
};

/// Long for a lock that all processes want, but short compared with a fail-over, after which the task waits again.
const WAIT: Duration = Duration::from_secs(8);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// With a body and a wait.
    Run,
    /// With a body, a wait and `min_hold`: no other task gets the lock for a while after the body.
    MinHold,
    /// The future is dropped while the body runs, if the body is long enough.
    DroppedBody,
    /// The body panics.
    Panic,
    /// With a guard and a wait. The guard is released or dropped.
    Guard,
    /// With a guard, if the lock is free.
    Try,
    /// The future is dropped while its reply is in flight.
    DroppedAcquire,
    /// With a body of several ttls, which works under the lock at its beginning and at its end.
    Long,
    /// The guard is leaked.
    Leak,
    /// Together with the other key of the pair.
    Both,
}

impl Way {
    /// Draws a way that fits the use of the key.
    pub(crate) fn choose(usage: Use, random: &mut Random) -> Self {
        match usage {
            Use::Leaked => random.weighted(&[(1, Self::Leak), (3, Self::Run), (1, Self::Guard)]),
            Use::Long => random.weighted(&[(2, Self::Long), (2, Self::Run), (1, Self::Guard)]),
            Use::Alone => Self::Long,
            Use::Private => random.weighted(&[(3, Self::DroppedAcquire), (2, Self::Run)]),
            Use::Pair => random.weighted(&[(4, Self::Both), (1, Self::Run), (1, Self::Guard)]),
            Use::Hot | Use::Few | Use::Shared | Use::Permits | Use::MorePermits => {
                random.weighted(&[
                    (30, Self::Run),
                    (30, Self::Guard),
                    (12, Self::Try),
                    (10, Self::DroppedAcquire),
                    (6, Self::DroppedBody),
                    (1, Self::MinHold),
                    (1, Self::Panic),
                ])
            }
        }
    }

    /// Takes the lock, records the outcome, and returns whether it was held.
    pub(crate) async fn take(
        self,
        contender: &Arc<Contender>,
        key: Kept,
        random: &mut Random,
    ) -> io::Result<bool> {
        let options = key.mode.of(LockOptions::new(key.ttl).wait(WAIT));
        let span = hold(random);
        let keys = match self {
            Self::Both => pair(key, random),
            _ => vec![key],
        };
        let attempt = Attempt::call(contender, keys)?;
        let (locks, name) = (attempt.locks(), attempt.name());
        match self {
            Self::Run => run(&attempt, options, span).await,
            Self::MinHold => {
                let options = options.min_hold(random.millis(100, 250));
                run(&attempt, options, span).await
            }
            Self::DroppedBody => drop_body(&attempt, options, span, random.millis(1, 60)).await,
            Self::Panic => panic_in_body(&attempt, options).await,
            Self::Guard => {
                let taken = locks.acquire(name, options).await;
                use_guard(&attempt, taken.map(Some), span, random).await
            }
            Self::Try => {
                let taken = locks.try_acquire(name, options).await;
                use_guard(&attempt, taken, span, random).await
            }
            Self::DroppedAcquire => drop_acquire(&attempt, options, span, random).await,
            Self::Long => {
                let longest = u64::try_from(LONG_HOLD.as_millis()).expect("a few seconds");
                run_for_long(&attempt, options, random.millis(1_000, longest)).await
            }
            Self::Leak => leak(&attempt, options.max_hold(MAX_HOLD)).await,
            Self::Both => {
                let taken = locks.acquire_all(attempt.names(), options).await;
                use_guard(&attempt, taken.map(Some), span, random).await
            }
        }
    }
}

/// Draws the length of a hold. Most are short, so that many tasks get the lock.
fn hold(random: &mut Random) -> Duration {
    random.weighted(&[
        (150, Duration::ZERO),
        (40, Duration::from_millis(2)),
        (9, Duration::from_millis(20)),
        (1, Duration::from_millis(150)),
    ])
}

/// Returns both keys of the pair, in any order.
fn pair(key: Kept, random: &mut Random) -> Vec<Kept> {
    let other = if key.name == "pair-0" {
        "pair-1"
    } else {
        "pair-0"
    };
    let other = Kept {
        name: other.to_owned(),
        ..key.clone()
    };
    if random.percent(50) {
        vec![key, other]
    } else {
        vec![other, key]
    }
}

async fn run(attempt: &Attempt, options: LockOptions, span: Duration) -> io::Result<bool> {
    let body = async |lease: Lease| attempt.hold(&lease, span).await;
    let ended = attempt.locks().run(attempt.name(), options, body).await;
    attempt.end(ended)
}

async fn run_for_long(attempt: &Attempt, options: LockOptions, span: Duration) -> io::Result<bool> {
    let body = async |lease: Lease| {
        attempt.begin(&lease)?;
        attempt.count_up(&lease).await?;
        sleep(span).await;
        attempt.count_up(&lease).await?;
        attempt.about_to_release(&lease)
    };
    let ended = attempt.locks().run(attempt.name(), options, body).await;
    attempt.end(ended)
}

async fn drop_body(
    attempt: &Attempt,
    options: LockOptions,
    span: Duration,
    after: Duration,
) -> io::Result<bool> {
    let held = OnceLock::new();
    let body = async |lease: Lease| {
        held.set(lease.clone()).ok();
        attempt.hold(&lease, span).await
    };
    let mut running = pin!(attempt.locks().run(attempt.name(), options, body));
    tokio::select! {
        biased;
        ended = &mut running => attempt.end(ended),
        () = sleep(after) => match held.get() {
            // Recorded before the future is dropped, and so before another holder can get the lock.
            Some(lease) => attempt.about_to_release(lease).map(|()| true),
            None => gave_up(attempt),
        }
    }
}

async fn panic_in_body(attempt: &Attempt, options: LockOptions) -> io::Result<bool> {
    let inner = attempt.clone();
    let task = tokio::spawn(async move {
        let body = async |lease: Lease| {
            let done = inner.hold(&lease, Duration::ZERO).await;
            assert!(done.is_err(), "the intended panic of a body");
            done
        };
        let ended = inner.locks().run(inner.name(), options, body).await;
        inner.end(ended)
    });
    match task.await {
        Ok(ended) => ended,
        Err(_panic) => {
            attempt.record(Step::Released)?;
            Ok(true)
        }
    }
}

async fn drop_acquire(
    attempt: &Attempt,
    options: LockOptions,
    span: Duration,
    random: &mut Random,
) -> io::Result<bool> {
    // Some futures are dropped after a number of polls: a timer is too slow for a reply that takes a tenth of a millisecond.
    let (polls, within) = (random.below(4), random.millis(1, 8));
    let counts_polls = random.percent(60);
    let taken = tokio::select! {
        biased;
        taken = attempt.locks().acquire(attempt.name(), options) => taken,
        () = wait_for_polls(polls), if counts_polls => return gave_up(attempt),
        () = sleep(within), if !counts_polls => return gave_up(attempt),
    };
    use_guard(attempt, taken.map(Some), span, random).await
}

async fn leak(attempt: &Attempt, options: LockOptions) -> io::Result<bool> {
    let guard = match attempt.locks().acquire(attempt.name(), options).await {
        Ok(guard) => guard,
        Err(error) => return attempt.end(Err(error)),
    };
    let lease = guard.lease();
    std::mem::forget(guard);
    attempt.begin(&lease)?;
    let counted = attempt.count_up(&lease).await;
    let attempt = attempt.clone();
    tokio::spawn(async move {
        say(&format!("loss: {}", lease.lost().await));
        attempt.record(Step::Lost).ok();
    });
    counted.map(|()| true)
}

/// Records a dropped attempt as failed. Its request may still be in flight.
fn gave_up(attempt: &Attempt) -> io::Result<bool> {
    attempt.record(Step::Failed)?;
    Ok(false)
}

async fn wait_for_polls(polls: u64) {
    for _ in 0..=polls {
        yield_now().await;
    }
}

/// Works under a guard, and releases it or drops it.
async fn use_guard(
    attempt: &Attempt,
    taken: Result<Option<LockGuard>, LockError>,
    span: Duration,
    random: &mut Random,
) -> io::Result<bool> {
    let guard = match taken {
        Ok(Some(guard)) => guard,
        Ok(None) => return gave_up(attempt),
        Err(error) => return attempt.end(Err(error)),
    };
    let lease = guard.lease();
    tokio::select! {
        biased;
        held = attempt.hold(&lease, span) => held?,
        reason = lease.lost() => {
            say(&format!("loss: {reason}"));
            attempt.record(Step::Lost)?;
            return Ok(true);
        }
    }
    if random.percent(30) {
        drop(guard);
        attempt.record(Step::Released)?;
        return Ok(true);
    }
    let released = guard.release().await;
    attempt.end(released.map(Ok))
}
