//! Values that have moved, and variables that cannot change.

#[allow(unused_imports)]
use lock_core::{LockError, distributed_lock};

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn a_use_after_a_move(n: u64, x: String) -> Result<u64, LockError> { drop(x); drop(x); Ok(n) }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn an_assignment_to_an_immutable_variable(n: u64) -> Result<u64, LockError> { let x = n; x = 5; Ok(x) }
