//! Values that cannot be part of a key.

use axum::extract::Path;
use lock_core::{LockError, distributed_lock};

// A value in several keys of a list: the missing bound is suggested once.
// error: `T` cannot be part of a lock key
// at: "order:{id}"
// note: consider restricting type parameter `T` with trait `KeyPart`
// error: `U` cannot be part of a lock key
// at: "event:{other}"
#[distributed_lock(key = ["order:{id}", "item:{id}", "event:{other}", "shop:{id:04}:{other}"])]
async fn a_bound_that_a_value_lacks_in_several_keys<T, U>(id: T, other: U) -> Result<(), LockError> { Ok(()) }

// A value with and without a format in one key: the missing bound is suggested once.
// error: `T` cannot be part of a lock key
// at: "order:{id}:{id:04}"
// note: consider restricting type parameter `T` with trait `KeyPart`
#[distributed_lock(key = "order:{id}:{id:04}")]
async fn a_bound_that_a_value_lacks_twice<T>(id: T) -> Result<(), LockError> { Ok(()) }

// error: `Option<u64>` cannot be part of a lock key
// at: "order:{id}"
// note: say what `None` means
#[distributed_lock(key = "order:{id}")]
async fn a_value_that_is_an_option(id: Option<u64>) -> Result<(), LockError> { Ok(()) }

// error: `Order` cannot be part of a lock key
// at: "order:{order}"
// note: does not implement `Display`
// note: name the field that identifies it
struct Order;
#[distributed_lock(key = "order:{order}")]
async fn a_value_that_is_not_display(order: Order) -> Result<(), LockError> { Ok(()) }

// error: `Option<u64>` cannot be part of a lock key
// at: "order:{id:>5}"
#[distributed_lock(key = "order:{id:>5}")]
async fn a_value_with_a_format_that_is_not_display(id: Option<u64>) -> Result<(), LockError> { Ok(()) }

// The extractor of a web framework around the value.
// error: `axum::extract::Path<u64>` cannot be part of a lock key
// at: "order:{id}"
// note: for an extractor, write `Path(id): Path<u64>`
#[distributed_lock(key = "order:{id}")]
async fn an_extractor_that_is_not_taken_apart(id: Path<u64>) -> Result<(), LockError> { Ok(()) }
