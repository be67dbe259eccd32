//! The message has carets below the mistake.
// error: no parameter is called `nme`: did you mean `name`?⏎    order:{order_id}:{nme}⏎                      ^^^
// at: "order:{order_id}:{nme}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{order_id}:{nme}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
