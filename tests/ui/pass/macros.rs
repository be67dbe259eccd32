//! Functions that another macro writes.

use lock_core::{LockError, distributed_lock};

// A macro that names the crate by dollar crate.
#[doc(hidden)]
pub use lock_core as __locks;

/// Declares a locked function.
#[macro_export]
macro_rules! locked {
    ($name:ident, $lease:ident, $manager:expr, $renew:literal) => {
        #[$crate::__locks::distributed_lock(key = "n:{n}", crate = $crate::__locks, lease = $lease, locks = $manager, renew = $renew)]
        async fn $name(n: u64) -> Result<u64, $crate::__locks::LockError> { let _ = &$lease; Ok(n) }
    };
}
locked!(f, lease, __locks::LockManager::in_memory(), false);

// A renamed crate.
#[distributed_lock(key = "n:{n}:{n:3}", crate = renamed::deeper::locks, lease = lease, on_busy = skip, on_lost = continue)]
async fn a_renamed_crate(n: u64) -> Result<Option<u64>, LockError> {
    let _ = lease;
    Ok(Some(n))
}

#[distributed_lock(key = "n:{n}", crate = ::lock_core)]
async fn a_renamed_crate_g(n: u64) -> Result<u64, LockError> {
    Ok(n)
}

mod renamed {
    pub(crate) mod deeper {
        pub(crate) use lock_core as locks;
    }
}

// Macro rules with a literal.
macro_rules! locked_of_macro_rules_with_a_literal {
    ($name:ident, $key:literal, $ttl:literal) => {
        #[distributed_lock(key = $key, ttl = $ttl)]
        async fn $name(n: u64) -> Result<u64, LockError> {
            Ok(n)
        }
    };
}
locked_of_macro_rules_with_a_literal!(plain, "order", "10s");

macro_rules! with_value {
    ($name:ident, $arg:ident: $ty:ty, $key:literal, $body:block) => {
        #[distributed_lock(key = $key)]
        async fn $name($arg: $ty) -> Result<$ty, LockError> $body
    };
}
with_value!(of_order, id: u64, "order:{id}", { Ok(id) });

// Macro rules with an expression.
macro_rules! locked_of_macro_rules_with_an_expression {
    ($name:ident, $key:expr, $ttl:expr, $wait:expr, $($arg:ident: $ty:ty),*) => {
        #[distributed_lock(key = $key, ttl = $ttl, wait = $wait)]
        async fn $name($($arg: $ty),*) -> Result<(), LockError> { let _ = ($(&$arg,)*); Ok(()) }
    };
}
locked_of_macro_rules_with_an_expression!(template, "order:{id}", "10s", std::time::Duration::from_secs(1), id: u64);
locked_of_macro_rules_with_an_expression!(expression, format!("order:{id}"), "1m", "0s", id: u64, other: String);
