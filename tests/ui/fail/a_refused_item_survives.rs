//! A refused function stays, so its callers cause no further errors.
// error: no parameter is called `self`
// at: "order:{self.id}"
// error: a function that is not `async`
// at: fn

use lock_core::distributed_lock;

#[distributed_lock(key = "order:{self.id}")]
fn f(order_id: u64) -> u64 {
    order_id
}
fn use_it() -> u64 {
    f(1)
}
