//! Functions that another macro writes, and attributes above and below.

use lock_core::{LockError, distributed_lock};
use std::time::Duration;

#[doc(hidden)]
pub use lock_core as __locks;

/// Declares a locked function. Its users need not depend on lock-core.
#[macro_export]
macro_rules! locked {
    ($name:ident, $lease:ident, $manager:expr, $renew:literal) => {
        #[$crate::__locks::distributed_lock(key = "n:{n}", crate = $crate::__locks, lease = $lease, locks = $manager, renew = $renew)]
        async fn $name(n: u64) -> Result<u64, $crate::__locks::LockError> {
            let _ = &$lease;
            Ok(n)
        }
    };
}
locked!(by_the_path_of_the_crate, lease, __locks::LockManager::in_memory(), false);

mod renamed {
    pub(crate) mod deeper {
        pub(crate) use lock_core as locks;
    }
}

#[distributed_lock(key = "n:{n}:{n:3}", crate = renamed::deeper::locks, lease = lease, on_busy = skip, on_lost = continue)]
async fn of_a_renamed_crate(n: u64) -> Result<Option<u64>, LockError> {
    let _ = lease;
    Ok(Some(n))
}

macro_rules! with_literals {
    ($name:ident, $arg:ident: $ty:ty, $key:literal, $ttl:literal, $body:block) => {
        #[distributed_lock(key = $key, ttl = $ttl)]
        async fn $name($arg: $ty) -> Result<$ty, LockError> $body
    };
}
with_literals!(of_order, id: u64, "order:{id}", "10s", { Ok(id) });

macro_rules! with_expressions {
    ($name:ident, $key:expr, $ttl:expr, $wait:expr, $($arg:ident: $ty:ty),*) => {
        #[distributed_lock(key = $key, ttl = $ttl, wait = $wait)]
        async fn $name($($arg: $ty),*) -> Result<(), LockError> {
            let _ = ($(&$arg,)*);
            Ok(())
        }
    };
}
with_expressions!(template, "order:{id}", "10s", Duration::from_secs(1), id: u64);
with_expressions!(expression, format!("order:{id}"), "1m", "0s", id: u64, other: String);

// The names in these templates have the hygiene of the macro.
struct Service {
    n: u64,
}
macro_rules! method {
    ($name:ident, $id2:ident) => {
        #[distributed_lock(key = "order:{id}:{self.n}")]
        async fn $name(&self, id: u64, $id2: u64) -> Result<u64, LockError> {
            Ok(id + $id2 + self.n)
        }
    };
}
impl Service {
    method!(by_its_own_names, id2);
}

#[distributed_lock(key = "a test", on_error = |error| panic!("{error}"))]
#[tokio::test]
async fn above_a_test() {
    assert_eq!(1 + 1, 2);
}

#[distributed_lock(key = "main")]
#[tokio::main]
async fn above_main() -> Result<(), LockError> {
    Ok(())
}
