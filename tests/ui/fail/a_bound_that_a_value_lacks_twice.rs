//! A value that the key has with a spec and without: the bound that is missing is proposed once.
// error: `T` cannot be part of a lock key
// at: "order:{id}:{id:04}"
// note: consider restricting type parameter `T` with trait `KeyPart`

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{id}:{id:04}")]
async fn f<T>(id: T) -> Result<(), LockError> {
    Ok(())
}
