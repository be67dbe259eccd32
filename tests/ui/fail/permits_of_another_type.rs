//! Permits of another type.
// error: `&str` is not a number of permits
// at: name.as_str()
// note: expected an integer from 1 to 1,000

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", permits = name.as_str())]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
