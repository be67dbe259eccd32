//! A value that is not display.
// error: `Order` cannot be part of a lock key
// at: "order:{order}"
// note: does not implement `Display`
// note: name the field that identifies it

use lock_core::{LockError, distributed_lock};

struct Order;
#[distributed_lock(key = "order:{order}")]
async fn f(order: Order) -> Result<(), LockError> {
    Ok(())
}
