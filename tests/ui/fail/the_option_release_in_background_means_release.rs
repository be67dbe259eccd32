//! The option release_in_background means release.
// error: there is no option `release_in_background`: did you mean `release`?
// at: release_in_background

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", release_in_background = true)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
