//! A job that every replica starts by its own clock, and that only one of them runs.
//!
//!     cargo run -p examples --bin scheduled_job
//!     LOCK_URL=redis://127.0.0.1 cargo run -p examples --bin scheduled_job -- 1
//!
//! Three replicas, with clocks 50 ms apart, must send only one notification. A lock alone is not enough: the job is done in a
//! moment, and the next replica finds the lock free. `min_hold` keeps the lock for longer than the clocks differ. With
//! `--without-min-hold`, the notification is sent three times. With a number, the program runs only that replica, as on a
//! machine of its own.
//!
//! `min_hold` also applies after an error: the other replicas skip a failed job until the next round. If one of them should retry
//! at once, leave `min_hold` out, and have the job record in a store that it is done.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{env, time::Duration};

use lock_core::{LockError, LockManager, distributed_lock};
use tokio::{task::JoinSet, time::sleep};

/// The difference between the clocks of two replicas.
const APART: Duration = Duration::from_millis(50);

/// Sends the notification, unless another replica has the lock or had it in the last minute, so that this round is done.
#[distributed_lock(key = "job:{job}", wait = "0s", on_busy = skip, min_hold = "1m")]
async fn run(job: &str, replica: u32) -> Result<Option<()>, LockError> {
    send(job, replica);
    Ok(Some(()))
}

/// Like `run`, but without `min_hold`, which is correct only if no replica starts after another one has finished the job.
#[distributed_lock(key = "job:{job}", wait = "0s", on_busy = skip)]
async fn run_too_often(job: &str, replica: u32) -> Result<Option<()>, LockError> {
    send(job, replica);
    Ok(Some(()))
}

fn send(job: &str, replica: u32) {
    println!("replica {replica} sends {job}");
}

async fn replica(number: u32, min_hold: bool) -> Result<(), LockError> {
    sleep(APART * number).await;
    let ran = if min_hold {
        run("weekly-newsletter", number).await?
    } else {
        run_too_often("weekly-newsletter", number).await?
    };
    if ran.is_none() {
        println!(
            "replica {number} skips it: another one sends it now, or has sent it in the last minute"
        );
    }
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = env::var("LOCK_URL").unwrap_or_else(|_| "memory://".to_owned());
    let locks = LockManager::connect(&url).await?;
    lock_core::set_global(locks.clone());

    let mut numbers = vec![1, 2, 3];
    let mut min_hold = true;
    for argument in env::args().skip(1) {
        match &*argument {
            "--without-min-hold" => min_hold = false,
            number => numbers = vec![number.parse()?],
        }
    }
    let mut replicas = JoinSet::new();
    for number in numbers {
        replicas.spawn(replica(number, min_hold));
    }
    for ended in replicas.join_all().await {
        ended?;
    }
    // This does not release a lock that is kept for `min_hold`.
    locks.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
