//! Jobs of apalis: at most one at a time for each account, and a job that is delivered again has no second effect.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::SystemTime;

use apalis::prelude::{BoxDynError, MemoryStorage, TaskSink, WorkerBuilder};
use lock_core::{LockError, LockManager, distributed_lock, run_once};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Invoice {
    id: u64,
    account: u64,
}

/// The function that the worker calls. An error makes apalis try the job again, if it is configured to.
async fn work(invoice: Invoice) -> Result<(), BoxDynError> {
    book(invoice.account, invoice.id).await?;
    Ok(())
}

/// Jobs of one account change one balance, so they take turns, whichever workers run them.
#[distributed_lock(key = "account:{account}", wait = "1m")]
async fn book(account: u64, invoice: u64) -> Result<SystemTime, LockError> {
    send(invoice).await
}

/// A storage delivers a job again if its worker seems dead. `keep` must be longer than the time in which that can happen.
#[run_once(key = "invoice:{invoice}", keep = "168h")]
async fn send(invoice: u64) -> Result<SystemTime, LockError> {
    println!("invoice {invoice} is sent");
    Ok(SystemTime::now())
}

#[tokio::main]
async fn main() -> Result<(), BoxDynError> {
    lock_core::set_global(LockManager::connect("redis://127.0.0.1").await?);
    // Yours: a storage that the workers share.
    let mut storage = MemoryStorage::new();
    storage.push(Invoice { id: 1, account: 7 }).await?;
    let worker = WorkerBuilder::new("invoices").backend(storage);
    worker.build(work).run().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use lock_core::with_locks;

    use super::*;

    #[tokio::test]
    async fn a_job_that_is_delivered_twice_has_one_effect() {
        let locks = LockManager::in_memory();
        let deliver = || with_locks(locks.clone(), book(7, 1));
        let (one, two) = tokio::join!(deliver(), deliver());
        assert_eq!(one.unwrap(), two.unwrap());
        let again = work(Invoice { id: 1, account: 7 });
        with_locks(locks, again).await.unwrap();
    }
}
