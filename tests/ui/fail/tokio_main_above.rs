//! Tokio main above.
// error: put `#[distributed_lock]` above `#[tokio::main]`
// at: main

use lock_core::{LockError, distributed_lock};

#[tokio::main]
#[distributed_lock(key = "order")]
async fn main() -> Result<(), LockError> {
    Ok(())
}
