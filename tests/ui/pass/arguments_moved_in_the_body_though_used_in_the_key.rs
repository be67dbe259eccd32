//! Arguments moved in the body though used in the key.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "user:{name}")]
async fn f(name: String) -> Result<(), LockError> {
    drop(name);
    Ok(())
}
