//! Concurrent transfers in both directions between two accounts, each under two locks: nothing deadlocks, and no cent is lost.
//! Without locks, most transfers are lost.
//!
//!     cargo run -p examples --bin transfer
//!     LOCK_URL=redis://127.0.0.1 cargo run -p examples --bin transfer
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{
    collections::HashMap,
    env,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use lock_core::{LockError, LockManager, distributed_lock};
use tokio::{task::JoinSet, time::sleep};

/// How many transfers there are in each direction.
const TRANSFERS: u32 = 100;

/// A store that takes a moment for each reply, in which other tasks may read and write, too.
#[derive(Clone)]
struct Bank {
    cents: Arc<Mutex<HashMap<&'static str, i64>>>,
}

impl Bank {
    async fn read(&self, account: &str) -> i64 {
        sleep(Duration::from_millis(1)).await;
        let cents = self.cents.lock().unwrap_or_else(PoisonError::into_inner);
        cents.get(account).copied().unwrap_or(0)
    }

    async fn write(&self, account: &'static str, balance: i64) {
        sleep(Duration::from_millis(1)).await;
        let mut cents = self.cents.lock().unwrap_or_else(PoisonError::into_inner);
        cents.insert(account, balance);
    }
}

/// Reads and writes both accounts, one after the other.
async fn move_money(bank: &Bank, from: &'static str, to: &'static str, cents: i64) {
    let balance = bank.read(from).await;
    bank.write(from, balance - cents).await;
    let balance = bank.read(to).await;
    bank.write(to, balance + cents).await;
}

/// Takes both locks at once, or none, and in the same order whatever the direction of the transfer.
#[distributed_lock(key = ["account:{from}", "account:{to}"], ttl = "10s", wait = "2m")]
async fn move_money_alone(
    bank: &Bank,
    from: &'static str,
    to: &'static str,
    cents: i64,
) -> Result<(), LockError> {
    move_money(bank, from, to, cents).await;
    Ok(())
}

/// Makes all transfers at once, and returns the balances.
async fn transfer(with_locks: bool) -> Result<String, LockError> {
    let bank = Bank {
        cents: Arc::new(Mutex::new(HashMap::from([("ann", 1_000), ("ben", 1_000)]))),
    };
    let mut transfers = JoinSet::new();
    for (from, to, cents) in [("ann", "ben", 7), ("ben", "ann", 2)].repeat(TRANSFERS as usize) {
        let bank = bank.clone();
        transfers.spawn(async move {
            if with_locks {
                return move_money_alone(&bank, from, to, cents).await;
            }
            move_money(&bank, from, to, cents).await;
            Ok(())
        });
    }
    for transferred in transfers.join_all().await {
        transferred?;
    }
    let (ann, ben) = (bank.read("ann").await, bank.read("ben").await);
    Ok(format!("ann has {ann} cents, ben has {ben}"))
}

#[tokio::main]
async fn main() -> Result<(), LockError> {
    let url = env::var("LOCK_URL").unwrap_or_else(|_| "memory://".to_owned());
    let locks = LockManager::connect(&url).await?;
    lock_core::set_global(locks.clone());

    println!("both begin with 1000 cents; ann pays ben 100 times 7, and he pays her 100 times 2");
    // Most transfers write back a balance that they read before other transfers wrote theirs.
    println!("without locks: {}", transfer(false).await?);
    println!("with locks: {}", transfer(true).await?);
    locks.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
