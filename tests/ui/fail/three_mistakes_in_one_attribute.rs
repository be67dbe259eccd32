//! Three mistakes in one attribute.
// error: did you mean `order_id`?
// at: "order:{oder_id}"
// error: has no unit
// at: "10"
// error: did you mean `on_busy`?
// at: on_bsy

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{oder_id}", ttl = "10", on_bsy = skip)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
