//! The leases that the running task holds, so that taking one of them again succeeds at once.
//!
//! The set follows the task: through `join!` and nested calls, not into a spawned task. It is a list from the innermost
//! body outwards, as short as bodies are nested.

use std::{
    future::Future,
    iter,
    sync::{Arc, Weak},
};

use crate::{
    key::{IntoLockKey, LockKey},
    lease::Lease,
    lock::{
        held::{holding::Holding, holdings::Holdings},
        registry::Registry,
    },
};

tokio::task_local! {
    static INNERMOST: Arc<HeldByBody>;
}

/// The lease held by one of the bodies that run.
struct HeldByBody {
    /// Which manager it belongs to: another manager's lease on the same key is another lock.
    registry: Weak<Registry>,
    lease: Lease,
    /// Shared by guards that take the key again. That of the lease's first key, and those of the others, if there are any.
    first: Weak<Holding>,
    others: Vec<Weak<Holding>>,
    outer: Option<Arc<HeldByBody>>,
}

impl HeldByBody {
    fn position(&self, key: &LockKey) -> Option<usize> {
        let mut leases = self.lease.leases().all().iter();
        leases.position(|lease| lease.key() == key)
    }

    fn holding_of(&self, key: &LockKey) -> Option<Weak<Holding>> {
        let mut holdings = iter::once(&self.first).chain(&self.others);
        holdings.nth(self.position(key)?).cloned()
    }
}

/// Runs `body` as one that holds the lease.
pub(crate) async fn scope<T>(
    registry: &Arc<Registry>,
    holdings: &Holdings,
    body: impl Future<Output = T>,
) -> T {
    let (first, others) = (&holdings.all()[0], &holdings.all()[1..]);
    let held = Arc::new(HeldByBody {
        registry: Arc::downgrade(registry),
        lease: Lease::new(holdings.leases()),
        first: Arc::downgrade(first),
        others: others.iter().map(Arc::downgrade).collect(),
        outer: innermost(),
    });
    INNERMOST.scope(held, body).await
}

/// What the running task holds of this key.
pub(crate) fn find(registry: &Arc<Registry>, key: &LockKey) -> Option<Arc<Holding>> {
    let ours = |held: &Arc<HeldByBody>| std::ptr::eq(held.registry.as_ptr(), Arc::as_ptr(registry));
    let found = all().filter(ours).find_map(|held| held.holding_of(key));
    found?.upgrade()
}

/// The lease of the innermost body.
pub(crate) fn current() -> Option<Lease> {
    innermost().map(|held| held.lease.clone())
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
    all().any(|held| held.position(key).is_some() && !held.lease.is_lost())
}

/// From the innermost outwards.
fn all() -> impl Iterator<Item = Arc<HeldByBody>> {
    iter::successors(innermost(), |held| held.outer.clone())
}

fn innermost() -> Option<Arc<HeldByBody>> {
    INNERMOST.try_with(Arc::clone).ok()
}
