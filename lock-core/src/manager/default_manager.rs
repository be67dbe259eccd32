//! The default manager, for calls that name none: that of the task, or else that of the process.

use std::{
    future::Future,
    sync::{Arc, PoisonError, RwLock},
};

use crate::{driver::reentry, error::LockError, lease::Lease, manager::LockManager, telemetry};

static GLOBAL: RwLock<Option<LockManager>> = RwLock::new(None);

tokio::task_local! {
    static OF_TASK: Option<LockManager>;
}

/// Makes a manager the default of annotated functions that name no other, and returns the previous default.
///
/// Call it once, at the start of the process. Replacing a manager that still grants locks logs a warning, because a holder
/// of the old manager may not exclude callers of the new one. To give another manager to a single task, use [`with_locks`].
///
/// # Examples
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lock_core::LockError> {
/// lock_core::set_global(lock_core::LockManager::connect("redis://127.0.0.1").await?);
/// # Ok(())
/// # }
/// ```
pub fn set_global(manager: LockManager) -> Option<LockManager> {
    let mut global = GLOBAL.write().unwrap_or_else(PoisonError::into_inner);
    let replaces_an_open_one = global
        .as_ref()
        .is_some_and(|previous| previous.is_open_and_differs_from(&manager));
    let previous = global.replace(manager);
    // Unlocked before the line is logged, because the subscriber may acquire a lock of the default manager.
    drop(global);
    if replaces_an_open_one {
        telemetry::global_manager_replaced();
    }
    previous
}

/// Runs a future in which annotated functions use this manager instead of the global one, as in tests that run in parallel.
///
/// The manager applies to this task, but not to tasks that it spawns: wrap those too, or pass the manager (`locks = …`). An
/// inner call takes precedence over an outer one. With the `testing` feature, the manager can inject faults.
///
/// # Cancel safety
///
/// This is as cancel safe as the future that it runs.
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

/// Passes this task's manager to a future that will run as a separate task.
pub(super) fn with_locks_of_this_task<F: Future>(
    future: F,
) -> impl Future<Output = F::Output> + use<F> {
    OF_TASK.scope(of_task(), future)
}

fn of_task() -> Option<LockManager> {
    OF_TASK.try_with(Clone::clone).ok().flatten()
}

/// Returns the lease of the innermost body in which the task runs, either of an annotated function or of
/// [`LockManager::run`].
///
/// Returns `None` outside of a body, and in a task that a body has spawned.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lock_core::LockError> {
/// # let manager = lock_core::LockManager::in_memory();
/// use lock_core::{LockOptions, current_lease};
///
/// async fn write() {
///     let lease = current_lease().expect("called under the lock");
///     println!("writing with fencing token {}", lease.fencing_token());
/// }
///
/// manager.run("report", LockOptions::default(), |_| write()).await?;
/// # Ok(())
/// # }
/// ```
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

    /// Returns `true` if this manager is not `other`, and can still grant locks because it was not shut down.
    fn is_open_and_differs_from(&self, other: &Self) -> bool {
        !Arc::ptr_eq(&self.inner, &other.inner) && !self.inner.registry.keys.are_closed()
    }
}

/// A source of a lock manager, which `locks = …` accepts.
///
/// # Examples
///
/// ```
/// use lock_core::{LockManager, LockSource};
///
/// struct AppState {
///     locks: LockManager,
/// }
///
/// impl LockSource for AppState {
///     fn lock_manager(&self) -> LockManager {
///         self.locks.clone()
///     }
/// }
/// # #[cfg(feature = "macros")] {
///
/// #[lock_core::distributed_lock(key = "order:{id}", locks = state)]
/// async fn charge(state: &AppState, id: u64) -> Result<(), lock_core::LockError> {
///     Ok(())
/// }
/// # }
/// ```
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
