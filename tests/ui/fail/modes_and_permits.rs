//! Modes and numbers of permits that the parser refuses.

use lock_core::{LockError, distributed_lock};

// error: `mode` must be `exclusive`, the default, or `shared`, without quotes: write `shared`
// at: read
// error: `mode` must be `exclusive`, the default, or `shared`, without quotes: write `exclusive`
// at: "exclusive"
#[distributed_lock(key = ["a:{order_id}", "b:{name}", "c"], mode = [read, "exclusive", shared])]
async fn mistakes_in_several_modes_of_a_list(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `permits` and `mode` exclude each other: write
// at: permits
#[distributed_lock(key = "order", mode = shared, permits = 3)]
async fn mode_beside_permits(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `mode` must be `exclusive`, the default, or `shared`, without quotes; to limit the number of holders, write `permits = 3` instead
// at: 3
#[distributed_lock(key = "order", mode = 3)]
async fn mode_that_is_a_number(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `mode` must be `exclusive`, the default, or `shared`, without quotes
// at: turbo
#[distributed_lock(key = "order", mode = turbo)]
async fn mode_that_is_another_word(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: the list of modes has length 2, but that of the keys has length 3: write one mode for each key, in the same order, or one without brackets for all
// at: [shared, exclusive]
#[distributed_lock(key = ["a:{order_id}", "b:{name}", "c"], mode = [shared, exclusive])]
async fn modes_for_fewer_keys_than_there_are(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: there is one key, but a list of modes: write `mode = shared`, without brackets
// at: [shared]
#[distributed_lock(key = "order", mode = [shared])]
async fn modes_for_one_key(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `mode` and `permits` exclude each other: write
// at: mode
#[distributed_lock(key = "order", permits = 3, mode = shared)]
async fn permits_beside_mode(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `permits` is not a usable number: all keys of a list have the same number: write it once, without brackets
// at: [1, 2]
#[distributed_lock(key = ["a:{order_id}", "b:{name}"], permits = [1, 2])]
async fn permits_for_each_key(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `permits` is not a usable number: a number takes no quotes: write `permits = 3`
// at: "3"
#[distributed_lock(key = "order", permits = "3")]
async fn permits_in_quotes(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `permits` is not a usable number: it is zero, but must be at least 1
// at: 0
#[distributed_lock(key = "order", permits = 0)]
async fn permits_of_zero(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `permits` is not a usable number: it is too large, and must be at most 1000
// at: 1001
#[distributed_lock(key = "order", permits = 1001)]
async fn permits_over_1000(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: write a number from 1 to 1000, as in `permits = 3`
// at: 1.5
#[distributed_lock(key = "order", permits = 1.5)]
async fn permits_that_are_a_fraction(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `permits` is not a usable number: it is negative, but must be at least 1
// at: -3
#[distributed_lock(key = "order", permits = -3)]
async fn permits_that_are_negative(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }
