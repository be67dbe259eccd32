//! A field that does not exist.
// error: no field `di` on type `Order`
// at: "order:{order.di}"

use lock_core::{LockError, distributed_lock};

struct Order {
    id: u64,
}
#[distributed_lock(key = "order:{order.di}")]
async fn f(order: Order) -> Result<u64, LockError> {
    Ok(order.id)
}
