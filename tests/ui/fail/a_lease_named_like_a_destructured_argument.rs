//! A lease named like a destructured argument.
// error: `b` is already an argument of this function
// at: b

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", lease = b)]
async fn f((a, b): (u8, u8)) -> Result<u8, LockError> {
    Ok(a + b)
}
