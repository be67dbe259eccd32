//! An unknown name where there are none.
// error: no parameter is called `id`: the function has none
// at: "order:{id}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{id}")]
async fn f() -> Result<(), LockError> {
    Ok(())
}
