//! The ways to take a lock and to release it, on purpose or not.

use std::{
    error::Error,
    io,
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use lock_core::{Lease, LockError, LockGuard, LockOptions};
use lock_tests::{Random, history::Step};
use tokio::{task::yield_now, time::sleep};

use crate::{
    contend::{Attempts, Contender, say},
    keys::{Kept, LONG_HOLD, MAX_HOLD, Use},
};

/// Long for a lock that all processes want, and short compared with a fail-over: after a wait that ends, another begins.
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
    /// With a guard and a wait; the guard is released or dropped.
    Guard,
    /// With a guard, if the lock is free.
    Try,
    /// The future is dropped while its reply is in flight.
    DroppedAcquire,
    /// With a body that takes several ttls, and works under the lock at its beginning and at its end.
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
        let options = LockOptions::new(key.ttl).wait(WAIT);
        let span = hold(random);
        match self {
            Self::Run => run(contender, key, options, span).await,
            Self::MinHold => {
                let options = options.min_hold(random.millis(100, 250));
                run(contender, key, options, span).await
            }
            Self::DroppedBody => {
                let after = random.millis(1, 60);
                drop_body(contender, key, options, span, after).await
            }
            Self::Panic => panic_in_body(contender, key, options).await,
            Self::Guard => {
                let attempts = contender.call([key.clone()])?;
                let taken = contender
                    .locks
                    .acquire(&key.name, key.mode.of(options))
                    .await;
                use_guard(contender, &attempts, taken.map(Some), span, random).await
            }
            Self::Try => {
                let attempts = contender.call([key.clone()])?;
                let taken = contender
                    .locks
                    .try_acquire(&key.name, key.mode.of(options))
                    .await;
                use_guard(contender, &attempts, taken, span, random).await
            }
            Self::DroppedAcquire => drop_acquire(contender, key, options, span, random).await,
            Self::Long => {
                let span = random.millis(1_000, millis(LONG_HOLD));
                run_for_long(contender, key, options, span).await
            }
            Self::Leak => leak(contender, key, options.max_hold(MAX_HOLD)).await,
            Self::Both => {
                let keys = pair(key, random);
                let attempts = contender.call(keys.clone())?;
                let names = keys.into_iter().map(|key| key.name);
                let taken = contender.locks.acquire_all(names, options).await;
                use_guard(contender, &attempts, taken.map(Some), span, random).await
            }
        }
    }
}

/// Draws the time of a hold, as a rule a short one, so that many tasks get the lock.
fn hold(random: &mut Random) -> Duration {
    random.weighted(&[
        (150, Duration::ZERO),
        (40, Duration::from_millis(2)),
        (9, Duration::from_millis(20)),
        (1, Duration::from_millis(150)),
    ])
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).expect("a few seconds")
}

/// Both keys of the pair, this one first or last.
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

async fn run(
    contender: &Contender,
    key: Kept,
    options: LockOptions,
    span: Duration,
) -> io::Result<bool> {
    let attempts = contender.call([key.clone()])?;
    let body = async |lease: Lease| contender.hold(&attempts, &lease, span).await;
    let ended = contender
        .locks
        .run(&key.name, key.mode.of(options), body)
        .await;
    end(contender, &attempts, ended)
}

async fn run_for_long(
    contender: &Contender,
    key: Kept,
    options: LockOptions,
    span: Duration,
) -> io::Result<bool> {
    let attempts = contender.call([key.clone()])?;
    let body = async |lease: Lease| {
        let since = contender.begin(&attempts, &lease)?;
        contender.count_up(&lease, since).await?;
        sleep(span).await;
        contender.count_up(&lease, since).await?;
        contender.about_to_release(&attempts, &lease)
    };
    let ended = contender
        .locks
        .run(&key.name, key.mode.of(options), body)
        .await;
    end(contender, &attempts, ended)
}

async fn drop_body(
    contender: &Contender,
    key: Kept,
    options: LockOptions,
    span: Duration,
    after: Duration,
) -> io::Result<bool> {
    let attempts = contender.call([key.clone()])?;
    let held = OnceLock::new();
    let body = async |lease: Lease| {
        held.set(lease.clone()).ok();
        contender.hold(&attempts, &lease, span).await
    };
    let mut running = pin!(contender.locks.run(&key.name, key.mode.of(options), body));
    let ended = tokio::select! {
        biased;
        ended = &mut running => ended,
        () = sleep(after) => {
            // The history has the end of this hold before another holder can have the lock.
            if let Some(lease) = held.get() {
                contender.about_to_release(&attempts, lease)?;
            } else {
                contender.record(&attempts, Step::Failed)?;
            }
            return Ok(held.get().is_some());
        }
    };
    end(contender, &attempts, ended)
}

async fn panic_in_body(
    contender: &Arc<Contender>,
    key: Kept,
    options: LockOptions,
) -> io::Result<bool> {
    let attempts = contender.call([key.clone()])?;
    let (inner, held) = (Arc::clone(contender), attempts.clone());
    let task = tokio::spawn(async move {
        let body = async |lease: Lease| {
            let done = inner.hold(&held, &lease, Duration::ZERO).await;
            assert!(done.is_err(), "a body panics, as it is to");
            done
        };
        let ended = inner.locks.run(&key.name, key.mode.of(options), body).await;
        end(&inner, &held, ended)
    });
    match task.await {
        Ok(ended) => ended,
        Err(_panic) => {
            contender.record(&attempts, Step::Released)?;
            Ok(true)
        }
    }
}

async fn drop_acquire(
    contender: &Contender,
    key: Kept,
    options: LockOptions,
    span: Duration,
    random: &mut Random,
) -> io::Result<bool> {
    // Some futures are dropped after a number of turns: a timer is too slow for a reply that takes a tenth of a millisecond.
    let (turns, within) = (random.below(4), random.millis(1, 8));
    let is_at_once = random.percent(60);
    let attempts = contender.call([key.clone()])?;
    let taken = tokio::select! {
        biased;
        taken = contender.locks.acquire(&key.name, key.mode.of(options)) => taken,
        () = wait_for_turns(turns), if is_at_once => return gave_up(contender, &attempts),
        () = sleep(within), if !is_at_once => return gave_up(contender, &attempts),
    };
    use_guard(contender, &attempts, taken.map(Some), span, random).await
}

async fn leak(contender: &Arc<Contender>, key: Kept, options: LockOptions) -> io::Result<bool> {
    let attempts = contender.call([key.clone()])?;
    let guard = match contender
        .locks
        .acquire(&key.name, key.mode.of(options))
        .await
    {
        Ok(guard) => guard,
        Err(error) => return end(contender, &attempts, Err(error)),
    };
    let lease = guard.lease();
    std::mem::forget(guard);
    let since = contender.begin(&attempts, &lease)?;
    let counted = contender.count_up(&lease, since).await;
    let contender = Arc::clone(contender);
    tokio::spawn(async move {
        say(&format!("loss: {}", lease.lost().await));
        contender.record(&attempts, Step::Lost).ok();
    });
    counted.map(|()| true)
}

/// Records a dropped attempt as failed; its request may still be in flight.
fn gave_up(contender: &Contender, attempts: &Attempts) -> io::Result<bool> {
    contender.record(attempts, Step::Failed)?;
    Ok(false)
}

async fn wait_for_turns(turns: u64) {
    for _ in 0..=turns {
        yield_now().await;
    }
}

/// Works under a guard, and ends it in one of several ways.
async fn use_guard(
    contender: &Contender,
    attempts: &Attempts,
    taken: Result<Option<LockGuard>, LockError>,
    span: Duration,
    random: &mut Random,
) -> io::Result<bool> {
    let guard = match taken {
        Ok(Some(guard)) => guard,
        Ok(None) => {
            contender.record(attempts, Step::Failed)?;
            return Ok(false);
        }
        Err(error) => return end(contender, attempts, Err(error)),
    };
    let lease = guard.lease();
    tokio::select! {
        biased;
        held = contender.hold(attempts, &lease, span) => held?,
        reason = lease.lost() => {
            say(&format!("loss: {reason}"));
            contender.record(attempts, Step::Lost)?;
            return Ok(true);
        }
    }
    if random.percent(30) {
        drop(guard);
        contender.record(attempts, Step::Released)?;
        return Ok(true);
    }
    let released = guard.release().await;
    end(contender, attempts, released.map(Ok))
}

/// Records how the attempt ended; returns whether the lock was held.
fn end(
    contender: &Contender,
    attempts: &Attempts,
    ended: Result<io::Result<()>, LockError>,
) -> io::Result<bool> {
    let step = match ended {
        Ok(done) => {
            done?;
            Step::Released
        }
        Err(LockError::Lost { reason, .. }) => {
            say(&format!("loss: {reason}"));
            Step::Lost
        }
        Err(error) => {
            if !error.is_busy() {
                let source = error.source().map(ToString::to_string);
                say(&format!("failure: {error}: {}", source.unwrap_or_default()));
            }
            Step::Failed
        }
    };
    contender.record(attempts, step)?;
    Ok(step != Step::Failed)
}
