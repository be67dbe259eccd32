//! Values of options whose type does not fit.

use lock_core::{LockError, LockManager, LockOptions, distributed_lock};

// error: mismatched types
// at: 5 + 5
#[distributed_lock(key = "order", ttl = 5 + 5)]
async fn a_duration_of_another_type(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// A key by hand that is a number: one error.
// error: `{integer}` is not a lock key
// at: 42
pub async fn a_key_by_hand_that_is_a_number(locks: &LockManager) {
    drop(locks.acquire(42, LockOptions::default()).await);
}

// error: `u64` is not a lock key
// at: order_id
// note: build one with
#[distributed_lock(key = order_id)]
async fn a_key_expression_that_is_not_text(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `String` is not a lock manager
// at: name
#[distributed_lock(key = "order", locks = name)]
async fn locks_that_is_not_a_manager(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: mismatched types
// at: error.to_string()
#[distributed_lock(key = "order", on_error = |error| error.to_string())]
async fn on_error_of_another_type(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `&str` is not a number of permits
// at: name.as_str()
// note: expected an integer from 1 to 1,000
#[distributed_lock(key = "order", permits = name.as_str())]
async fn permits_of_another_type(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }
