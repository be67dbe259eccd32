//! Macro rules with a literal.

use lock_core::{LockError, distributed_lock};

macro_rules! locked {
    ($name:ident, $key:literal, $ttl:literal) => {
        #[distributed_lock(key = $key, ttl = $ttl)]
        async fn $name(n: u64) -> Result<u64, LockError> {
            Ok(n)
        }
    };
}
locked!(plain, "order", "10s");

macro_rules! with_value {
    ($name:ident, $arg:ident: $ty:ty, $key:literal, $body:block) => {
        #[distributed_lock(key = $key)]
        async fn $name($arg: $ty) -> Result<$ty, LockError> $body
    };
}
with_value!(of_order, id: u64, "order:{id}", { Ok(id) });
