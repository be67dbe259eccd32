//! A body that is todo.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{id}")]
async fn later(id: u64) -> Result<String, LockError> {
    unimplemented!("for {id}")
}
