//! Options that take a name, a path, or one of two words.

use lock_core::{LockError, distributed_lock, run_once};

// error: expected identifier
// at: "lock_core"
#[distributed_lock(key = "order", crate = "lock_core")]
async fn a_crate_that_is_not_a_path(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `b` is already an argument of this function: choose another name for the lease
// at: b
#[distributed_lock(key = "order", lease = b)]
async fn a_lease_named_like_a_destructured_argument((a, b): (u8, u8)) -> Result<u8, LockError> { Ok(a + b) }

// error: `lease` takes the name of the lease in the body: write `lease = lease`
// at: "lease"
#[distributed_lock(key = "order", lease = "lease")]
async fn a_lease_that_is_not_a_name(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `on_busy` must be `error`, the default, or `skip`, without quotes
// at: wait
#[distributed_lock(key = "order", on_busy = wait)]
async fn on_busy_with_another_word(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `on_drop` must be `finish`, the default, or `cancel`, without quotes
// at: other
// error: `on_drop` must be `cancel`, the default, or `finish`, without quotes
// at: "finish"
#[run_once(key = "k", keep = "1h", on_drop = other)]
pub async fn run() -> Result<u8, LockError> { Ok(1) }
#[distributed_lock(key = "k", on_drop = "finish")]
pub async fn lock() -> Result<u8, LockError> { Ok(1) }

// error: expected a `FnOnce(LockError)` closure, found
// at: 5
#[distributed_lock(key = "order", on_error = 5)]
async fn on_error_that_is_not_a_function(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `renew` must be `true`, the default, or `false`, without quotes
// at: "no"
#[distributed_lock(key = "order", renew = "no")]
async fn renew_in_quotes(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }
