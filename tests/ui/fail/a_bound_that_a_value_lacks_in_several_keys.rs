//! A value in several keys of a list: the bound that it lacks is proposed once.
// error: `T` cannot be part of a lock key
// at: "order:{id}"
// note: consider restricting type parameter `T` with trait `KeyPart`
// error: `U` cannot be part of a lock key
// at: "event:{other}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = ["order:{id}", "item:{id}", "event:{other}", "shop:{id:04}:{other}"])]
async fn f<T, U>(id: T, other: U) -> Result<(), LockError> {
    Ok(())
}
