//! A macro that names the crate by dollar crate.

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
