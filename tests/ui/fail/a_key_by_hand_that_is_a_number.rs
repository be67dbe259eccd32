//! A key by hand that is a number: one error.
// error: `{integer}` is not a lock key
// at: 42

use lock_core::{LockManager, LockOptions};

pub async fn f(locks: &LockManager) {
    drop(locks.acquire(42, LockOptions::default()).await);
}
