//! `#[tokio::test]` above the attribute.
// error: put `#[distributed_lock]` above `#[tokio::test]`
// at: works
// flag: --test

use lock_core::{LockError, distributed_lock};

#[tokio::test]
#[distributed_lock(key = "order")]
async fn works() -> Result<(), LockError> {
    Ok(())
}
