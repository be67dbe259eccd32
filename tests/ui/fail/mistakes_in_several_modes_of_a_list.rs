//! Mistakes in several modes of a list.
// error: `mode` must be `exclusive`, the default, or `shared`, without quotes: write `shared`
// at: read
// error: `mode` must be `exclusive`, the default, or `shared`, without quotes: write `exclusive`
// at: "exclusive"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = ["a:{order_id}", "b:{name}", "c"], mode = [read, "exclusive", shared])]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
