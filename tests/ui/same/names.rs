//! Names that do not exist.

#[allow(unused_imports)]
use lock_core::{LockError, distributed_lock};

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn an_unknown_name(n: u64) -> Result<u64, LockError> { Ok(m) }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn an_unknown_type(n: u64, m: Nothing) -> Result<u64, LockError> { Ok(n) }
