//! The default manager, for calls that name none: the one of the task, otherwise the one of the process.

use std::{
    future::Future,
    sync::{Arc, PoisonError, RwLock},
};

use crate::{driver::reentry, error::LockError, lease::Lease, manager::LockManager, telemetry};

static GLOBAL: RwLock<Option<LockManager>> = RwLock::new(None);

tokio::task_local! {
    static OF_TASK: Option<LockManager>;
}

/// Makes a manager the default of annotated functions that name no other, and returns the previous one.
///
/// Call it once, at the start of the process. Replacing a manager that still grants locks logs a warning, because a holder of
/// the old manager may not exclude callers of the new one. To give another manager to a single task, use [`with_locks`].
pub fn set_global(manager: LockManager) -> Option<LockManager> {
    let mut global = GLOBAL.write().unwrap_or_else(PoisonError::into_inner);
    let is_news = global
        .as_ref()
        .is_some_and(|previous| previous.still_grants_beside(&manager));
    let previous = global.replace(manager);
    // Unlocked before the line is logged, because the log's subscriber may take a lock of the default manager.
    drop(global);
    if is_news {
        telemetry::global_manager_replaced();
    }
    previous
}

/// Runs a future in which annotated functions use this manager instead of the global one, as in tests that run in parallel.
///
/// It applies to the task, not to tasks that it spawns: wrap those too, or pass the manager (`locks = …`). An inner call takes
/// precedence over an outer one. With the feature `testing`, the manager can inject faults on demand.
///
/// # Cancel safety
///
/// As cancel safe as the future that it runs.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use lock_core::{LockManager, with_locks};
///
/// # async fn charge(_order_id: u64) {}
/// with_locks(LockManager::in_memory(), charge(42)).await;
/// # }
/// ```
pub async fn with_locks<F: Future>(manager: LockManager, future: F) -> F::Output {
    OF_TASK.scope(Some(manager), future).await
}

/// Passes this task's manager to a future that will run as a task of its own.
pub(super) fn with_locks_of_this_task<F: Future>(
    future: F,
) -> impl Future<Output = F::Output> + use<F> {
    OF_TASK.scope(of_task(), future)
}

fn of_task() -> Option<LockManager> {
    OF_TASK.try_with(Clone::clone).ok().flatten()
}

/// Returns the lease of the innermost body in which the task runs, be it the body of an annotated function or of
/// [`LockManager::run`].
#[must_use]
pub fn current_lease() -> Option<Lease> {
    reentry::current().map(Lease::new)
}

impl LockManager {
    /// Returns the manager of the task, or else the global one.
    pub(crate) fn current_default() -> Result<Self, LockError> {
        if let Some(manager) = of_task() {
            return Ok(manager);
        }
        let global = GLOBAL.read().unwrap_or_else(PoisonError::into_inner);
        global.clone().ok_or(LockError::NotConfigured)
    }

    /// Returns `true` if this is a different manager from `other`, and can still grant locks because it was not shut down.
    fn still_grants_beside(&self, other: &Self) -> bool {
        !Arc::ptr_eq(&self.inner, &other.inner) && !self.inner.registry.keys.are_closed()
    }
}

/// A source of a lock manager: the type of values that `locks = …` accepts.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a lock manager",
    label = "expected a `LockManager`, or a type that implements `LockSource`",
    note = "write `locks = state.locks` where `locks` is a `LockManager`, or implement `lock_core::LockSource`"
)]
pub trait LockSource {
    /// Returns the manager, as a cheap clone.
    fn lock_manager(&self) -> LockManager;
}

impl LockSource for LockManager {
    fn lock_manager(&self) -> LockManager {
        self.clone()
    }
}

impl<T: LockSource + ?Sized> LockSource for &T {
    fn lock_manager(&self) -> LockManager {
        (**self).lock_manager()
    }
}

impl<T: LockSource + ?Sized> LockSource for Arc<T> {
    fn lock_manager(&self) -> LockManager {
        (**self).lock_manager()
    }
}
