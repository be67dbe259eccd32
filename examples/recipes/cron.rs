//! A job of tokio-cron-scheduler that one of several replicas runs at each tick.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{
    error::Error,
    future,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lock_core::{LockError, LockManager, run_once};
use tokio_cron_scheduler::{Job, JobScheduler};

const EVERY: Duration = Duration::from_hours(1);

/// The number of the tick that is nearest to this time. Replicas agree on it as long as their clocks differ by less than half of
/// `EVERY`, even if one of them is early and another one late.
fn tick(now: SystemTime) -> u64 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    (since + EVERY / 2).as_secs() / EVERY.as_secs()
}

/// Runs on the first replica that calls it for a tick, and returns the time of that run. The other replicas wait, in case the
/// first one dies, and then return its result.
#[run_once(key = "statistics:{tick}", keep = "2h", wait = "10m")]
async fn statistics(tick: u64) -> Result<SystemTime, LockError> {
    println!("the statistics of tick {tick}");
    Ok(SystemTime::now())
}

async fn schedule() -> Result<JobScheduler, Box<dyn Error>> {
    let scheduler = JobScheduler::new().await?;
    let job = Job::new_async("0 0 * * * *", |_, _| {
        Box::pin(async {
            if let Err(error) = statistics(tick(SystemTime::now())).await {
                eprintln!("statistics: {error}");
            }
        })
    })?;
    scheduler.add(job).await?;
    Ok(scheduler)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    lock_core::set_global(LockManager::connect("redis://127.0.0.1").await?);
    schedule().await?.start().await?;
    future::pending().await
}

#[cfg(test)]
mod tests {
    use lock_core::with_locks;

    use super::*;

    #[test]
    fn early_and_late_replicas_agree_on_the_tick() {
        let full_hour = UNIX_EPOCH + 500_000 * EVERY;
        for off in [Duration::ZERO, Duration::from_millis(300), EVERY / 3] {
            assert_eq!(tick(full_hour + off), 500_000);
            assert_eq!(tick(full_hour - off), 500_000);
        }
        assert_eq!(tick(full_hour + EVERY), 500_001);
    }

    #[tokio::test]
    async fn three_replicas_run_a_tick_once() {
        let locks = LockManager::in_memory();
        let replica = || with_locks(locks.clone(), statistics(7));
        let (one, two, three) = tokio::join!(replica(), replica(), replica());
        let ran = one.unwrap();
        assert_eq!([two.unwrap(), three.unwrap()], [ran, ran]);
    }

    #[tokio::test]
    async fn the_schedule_can_be_read() {
        schedule().await.unwrap();
    }
}
