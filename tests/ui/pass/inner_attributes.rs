//! Inner attributes.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "n:{n}")]
async fn f(n: u64) -> Result<u64, LockError> {
    #![allow(unused_variables)]
    let x = 5;
    Ok(n)
}
