//! Mistakes in several keys of a list.
// error: did you mean `order_id`?
// at: "order:{oder_id}"
// error: the key is empty
// at: ""
// error: no fixed text
// at: "{name}"
// error: two values touch
// at: "k:{order_id}{name}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = ["order:{oder_id}", "fine:{name}", "", "{name}", "k:{order_id}{name}", name.as_str()])]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
