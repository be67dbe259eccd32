//! The leases that the running task holds, so that taking one of them again succeeds at once.
//!
//! The set follows the task: through `join!` and nested calls, not into a spawned task. It is a list from the innermost
//! body outwards, as short as bodies are nested.

use std::{future::Future, iter, ptr, sync::Arc};

use crate::{
    key::{IntoLockKey, LockKey},
    lock::{hold::Leases, lease_state::LeaseState, registry::Registry},
};

tokio::task_local! {
    static INNERMOST: Arc<HeldByBody>;
}

/// What one of the bodies that run holds. Guards that take a key of it again share its lease.
struct HeldByBody {
    leases: Leases,
    outer: Option<Arc<HeldByBody>>,
}

impl HeldByBody {
    fn lease_of(&self, key: &LockKey) -> Option<&Arc<LeaseState>> {
        self.leases.all().iter().find(|lease| lease.key == *key)
    }
}

/// Runs `body` as one that holds the leases.
pub(crate) async fn scope<T>(leases: &Leases, body: impl Future<Output = T>) -> T {
    let held = Arc::new(HeldByBody {
        leases: leases.clone(),
        outer: innermost(),
    });
    INNERMOST.scope(held, body).await
}

/// The lease by which the running task holds this key. Another manager's lease on the same key is another lock.
pub(crate) fn find(registry: &Arc<Registry>, key: &LockKey) -> Option<Arc<LeaseState>> {
    let found = all().filter_map(|held| held.lease_of(key).cloned());
    let mut ours = found.filter(|lease| ptr::eq(&raw const *lease.registry, Arc::as_ptr(registry)));
    ours.next()
}

/// The leases of the innermost body.
pub(crate) fn current() -> Option<Leases> {
    innermost().map(|held| held.leases.clone())
}

/// Panics unless the running task is in a body that holds the key: for functions that rely on their caller's lock.
///
/// Takes what [`LockManager::acquire`](crate::LockManager::acquire) takes as a key. A guard without a body does not count,
/// and a lease that is lost does not either.
///
/// # Panics
///
/// If the key is not held.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lock_core::LockError> {
/// # let manager = lock_core::LockManager::in_memory();
/// async fn write_balance(account: u64) {
///     lock_core::assert_held!(format!("account:{account}"));
///     // …
/// }
///
/// manager.run("account:7", lock_core::LockOptions::default(), |_| write_balance(7)).await?;
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! assert_held {
    ($key:expr $(,)?) => {
        $crate::__private::assert_holds($key)
    };
}

/// What [`assert_held!`](crate::assert_held) expands to.
///
/// # Panics
///
/// If the key is not held.
#[track_caller]
pub fn assert_holds(key: impl IntoLockKey) {
    let key = key.into_lock_key();
    assert!(holds(&key), "the lock `{key}` is not held by this task");
}

/// Whether the running task holds this key, of whatever manager.
fn holds(key: &LockKey) -> bool {
    all().any(|held| held.lease_of(key).is_some() && held.leases.ended().is_none())
}

/// From the innermost outwards.
fn all() -> impl Iterator<Item = Arc<HeldByBody>> {
    iter::successors(innermost(), |held| held.outer.clone())
}

fn innermost() -> Option<Arc<HeldByBody>> {
    INNERMOST.try_with(Arc::clone).ok()
}
