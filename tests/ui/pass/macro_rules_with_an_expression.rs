//! Macro rules with an expression.

use lock_core::{LockError, distributed_lock};

macro_rules! locked {
    ($name:ident, $key:expr, $ttl:expr, $wait:expr, $($arg:ident: $ty:ty),*) => {
        #[distributed_lock(key = $key, ttl = $ttl, wait = $wait)]
        async fn $name($($arg: $ty),*) -> Result<(), LockError> { let _ = ($(&$arg,)*); Ok(()) }
    };
}
locked!(template, "order:{id}", "10s", std::time::Duration::from_secs(1), id: u64);
locked!(expression, format!("order:{id}"), "1m", "0s", id: u64, other: String);
