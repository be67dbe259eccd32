//! One lock in three ways: by attribute, busy, and by hand.
//!
//!     cargo run -p examples --bin quickstart
//!     cargo run -p examples --bin quickstart -- redis://127.0.0.1:6379
//!
//! The url can also be set in the variable `LOCK_URL`.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{env, time::Duration};

use lock_core::{LockError, LockManager, LockOptions, distributed_lock, key};

/// Runs once at a time for each order, across all processes.
#[distributed_lock(key = "order:{order_id}", ttl = "10s")]
async fn charge(order_id: u64, cents: u32) -> Result<(), LockError> {
    println!("order {order_id}: asking for {cents} cents");
    tokio::time::sleep(Duration::from_millis(50)).await;
    println!("order {order_id}: {cents} cents charged");
    Ok(())
}

/// Takes the same lock as `charge`, but returns an error instead of waiting.
#[distributed_lock(key = "order:{order_id}", ttl = "10s", wait = "0s")]
async fn charge_at_once(order_id: u64) -> Result<(), LockError> {
    println!("order {order_id}: charged at once");
    Ok(())
}

async fn by_hand(locks: &LockManager, order_id: u64) -> Result<(), LockError> {
    let options = LockOptions::new(Duration::from_secs(10)).wait(Duration::from_secs(2));
    let guard = locks.acquire(key!("order:{order_id}"), options).await?;
    println!("order {order_id}: held by hand, so no other call charges it");

    match charge_at_once(order_id).await {
        Err(LockError::Busy { key, .. }) => println!("{key} is busy"),
        other => other?,
    }
    // Each order has its own lock.
    charge_at_once(order_id + 1).await?;

    // A guard that is only dropped is released too, in the background. This call waits, and returns the outcome.
    guard.release().await?;
    charge_at_once(42).await
}

#[tokio::main]
async fn main() -> Result<(), LockError> {
    let url = env::args().nth(1).or_else(|| env::var("LOCK_URL").ok());
    let url = url.unwrap_or_else(|| "memory://".to_owned());
    let locks = LockManager::connect(&url).await?;
    lock_core::set_global(locks.clone());

    // Both calls start at the same time. Their bodies run one after the other.
    let (first, second) = tokio::join!(charge(42, 1_999), charge(42, 500));
    first.and(second)?;

    by_hand(&locks, 42).await?;
    locks.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
