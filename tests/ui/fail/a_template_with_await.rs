//! A template with await.
// error: `.await` cannot be used in a key template: write `key = expression` instead
// at: "order:{name.await}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{name.await}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
