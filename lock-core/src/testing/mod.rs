//! Faults on demand, for the tests of crates that use locks.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    driver::registry::Registry,
    engine::event::Event,
    error::LeaseLost,
    key::{IntoLockKey, LockKey},
    mode::RequestKind,
    telemetry,
    testing::faulty_backend::FaultyBackend,
};

pub(crate) mod faulty_backend;

/// Injects faults into one in-memory manager, for your tests.
///
/// [`LockManager::in_memory_with_faults`](crate::manager::LockManager::in_memory_with_faults) returns it with the manager.
/// All faults follow tokio's clock, so a test with `start_paused = true` takes no time. To your code, a fault looks as it
/// would with a server: calls return the same errors after the same time, and bodies are dropped in the same way.
///
/// | fault | a body that runs | an acquire |
/// | --- | --- | --- |
/// | [`lose`](Self::lose), [`expire`](Self::expire) | is dropped, [`LockError::Lost`](crate::error::LockError::Lost) | finds the lock free |
/// | [`busy`](Self::busy) | is dropped, `Lost` | [`LockError::Busy`](crate::error::LockError::Busy) after its wait |
/// | [`unavailable`](Self::unavailable) | continues until its lease ends, then `Lost` | [`LockError::Unavailable`](crate::error::LockError::Unavailable) after its wait |
/// | [`delay`](Self::delay) | continues if renewals arrive in time | takes longer |
/// | [`forget`](Self::forget) | continues | of `run_once`: runs the body again |
///
/// If the backend is [`unavailable`](Self::unavailable) when a body of `run_once` ends, the caller gets its value. The
/// result is stored if the fault ends before the lease does. Otherwise, the next caller runs the body again.
///
/// # Examples
///
/// Tests of how two functions behave with these faults:
///
/// ```
/// # #[cfg(feature = "macros")]
/// # mod example {
/// use std::{future::pending, time::Duration};
/// use lock_core::{LockError, LockManager, distributed_lock, with_locks};
///
/// #[distributed_lock(key = "order:{order_id}", ttl = "10s", wait = "2s")]
/// async fn charge(order_id: u64) -> Result<(), LockError> {
///     Ok(())
/// }
///
/// #[distributed_lock(key = "import", ttl = "10s")]
/// async fn import() -> Result<(), LockError> {
///     pending().await // Takes longer than any test.
/// }
///
/// # /*
/// #[tokio::test(start_paused = true)]
/// # */
/// async fn an_order_that_is_being_charged_elsewhere_is_not_charged() {
///     let (locks, faults) = LockManager::in_memory_with_faults();
///     faults.busy("order:42");
///     let charged = with_locks(locks, charge(42)).await;
///     assert!(charged.is_err_and(|error| error.is_busy()));
/// }
///
/// # /*
/// #[tokio::test(start_paused = true)]
/// # */
/// async fn a_charge_waits_for_a_lock_that_is_busy_for_a_second() {
///     let (locks, faults) = LockManager::in_memory_with_faults();
///     faults.busy_for("order:42", Duration::from_secs(1));
///     assert!(with_locks(locks, charge(42)).await.is_ok());
/// }
///
/// # /*
/// #[tokio::test(start_paused = true)]
/// # */
/// async fn nothing_is_charged_while_the_server_is_unavailable() {
///     let (locks, faults) = LockManager::in_memory_with_faults();
///     faults.unavailable();
///     let charged = with_locks(locks.clone(), charge(42)).await;
///     assert!(matches!(charged, Err(LockError::Unavailable { .. })));
///     faults.heal();
///     assert!(with_locks(locks, charge(42)).await.is_ok());
/// }
///
/// # /*
/// #[tokio::test(start_paused = true)]
/// # */
/// async fn an_import_ends_when_its_lock_is_lost() {
///     let (locks, faults) = LockManager::in_memory_with_faults();
///     let operator = async {
///         tokio::time::sleep(Duration::from_secs(60)).await;
///         faults.lose("import");
///     };
///     let (imported, ()) = tokio::join!(with_locks(locks, import()), operator);
///     assert!(matches!(imported, Err(LockError::Lost { .. })));
/// }
///
/// # /*
/// #[tokio::test(start_paused = true)]
/// # */
/// async fn an_import_ends_when_its_lease_expires() {
///     let (locks, faults) = LockManager::in_memory_with_faults();
///     let stopped = async {
///         tokio::task::yield_now().await;
///         faults.expire("import");
///     };
///     let (imported, ()) = tokio::join!(with_locks(locks, import()), stopped);
///     assert!(matches!(imported, Err(LockError::Lost { .. })));
/// }
///
/// # /*
/// #[tokio::test(start_paused = true)]
/// # */
/// async fn a_charge_succeeds_on_a_slow_server() {
///     let (locks, faults) = LockManager::in_memory_with_faults();
///     faults.delay(Duration::from_millis(500));
///     assert!(with_locks(locks, charge(42)).await.is_ok());
/// }
/// # pub fn run(test: impl Future<Output = ()>) {
/// #     let mut runtime = tokio::runtime::Builder::new_current_thread();
/// #     runtime.enable_time().start_paused(true).build().unwrap().block_on(test);
/// # }
/// # pub fn all() {
/// #     run(an_order_that_is_being_charged_elsewhere_is_not_charged());
/// #     run(a_charge_waits_for_a_lock_that_is_busy_for_a_second());
/// #     run(nothing_is_charged_while_the_server_is_unavailable());
/// #     run(an_import_ends_when_its_lock_is_lost());
/// #     run(an_import_ends_when_its_lease_expires());
/// #     run(a_charge_succeeds_on_a_slow_server());
/// # }
/// # }
/// # #[cfg(feature = "macros")]
/// # fn main() { example::all() }
/// # #[cfg(not(feature = "macros"))]
/// # fn main() {}
/// ```
#[derive(Clone)]
pub struct Faults {
    registry: Arc<Registry>,
    backend: Arc<FaultyBackend>,
}

impl Faults {
    pub(crate) fn new(registry: Arc<Registry>, backend: Arc<FaultyBackend>) -> Self {
        Self { registry, backend }
    }

    /// Takes a lock away from its holder, as when an operator deletes the key.
    ///
    /// The holder notices at once, while with a server it would notice at its next renewal. Its lease is
    /// [`LeaseLost::TakenAway`], its body is never polled again, and the lock is free.
    ///
    /// # Panics
    ///
    /// Panics if the key is not held through this manager, because a test with a fault that has no effect would prove
    /// nothing.
    #[track_caller]
    pub fn lose(&self, key: impl IntoLockKey) {
        self.end(&key.into_lock_key(), LeaseLost::TakenAway);
    }

    /// Ends a lease, as if it could not be renewed in time.
    ///
    /// Otherwise like [`lose`](Self::lose), with [`LeaseLost::Expired`], as in a process that was stopped for longer than
    /// its ttl.
    ///
    /// # Panics
    ///
    /// Panics if the key is not held through this manager.
    #[track_caller]
    pub fn expire(&self, key: impl IntoLockKey) {
        self.end(&key.into_lock_key(), LeaseLost::Expired);
    }

    /// Gives a lock to a holder elsewhere, which keeps it until [`heal`](Self::heal).
    ///
    /// That holder renews a lease of 10 s, so `retry_after` says 10 s. A holder of this manager loses the lock at once.
    /// [`LockManager::force_release`](crate::manager::LockManager::force_release) takes the lock away from the holder
    /// elsewhere.
    pub fn busy(&self, key: impl IntoLockKey) {
        self.occupy(&key.into_lock_key(), None);
    }

    /// Gives a lock to a holder elsewhere for this long, after which it is free. Otherwise like [`busy`](Self::busy).
    pub fn busy_for(&self, key: impl IntoLockKey, span: Duration) {
        self.occupy(&key.into_lock_key(), Some(span));
    }

    /// Refuses every request until [`heal`](Self::heal), as when there is no connection to the server.
    ///
    /// Acquires retry until their wait is over. Leases stay valid until their ttl runs out, and are renewed if the fault
    /// ends in time.
    pub fn unavailable(&self) {
        self.backend.go_away(None);
    }

    /// Refuses every request for this long. Otherwise like [`unavailable`](Self::unavailable).
    pub fn unavailable_for(&self, span: Duration) {
        self.backend.go_away(Some(span));
    }

    /// Delays every reply by this much, until [`heal`](Self::heal).
    ///
    /// If the delay is as long as the command time-out (1 s, see
    /// [`command_timeout`](crate::manager::builder::LockManagerBuilder::command_timeout)), replies count as missing,
    /// although the requests are executed. Renewals adapt to slow replies, and wait up to a third of the ttl for them. With
    /// a longer delay, leases expire.
    pub fn delay(&self, by: Duration) {
        self.backend.delay(by);
    }

    /// Deletes the result of a body that ran once, as when the server evicts it. The next caller runs the body again.
    pub fn forget(&self, key: impl IntoLockKey) {
        let key = key.into_lock_key();
        telemetry::check_literal(&key);
        let full_key = self.registry.full_key(&key);
        self.backend.memory.forget_result(&full_key);
    }

    /// Ends all faults at once: holders elsewhere release their locks, and the backend replies again.
    ///
    /// Leases that were lost stay lost.
    pub fn heal(&self) {
        self.backend.heal();
    }

    #[track_caller]
    fn end(&self, key: &LockKey, reason: LeaseLost) {
        telemetry::check_literal(key);
        assert!(
            self.registry.keys.is_held(key),
            "the lock `{key}` is not held through this manager"
        );
        let full_key = self.registry.full_key(key);
        // The lock is freed before the holder is notified, so that its next acquire finds it free. Waiters in the queue get
        // it only afterwards, because the loss would otherwise end their leases, too.
        self.backend.end_lease(&full_key);
        self.end_leases(key, reason);
        self.backend.memory.serve(&full_key);
    }

    fn occupy(&self, key: &LockKey, span: Option<Duration>) {
        telemetry::check_literal(key);
        self.backend.occupy(&self.registry.full_key(key), span);
        // Called after the backend has the holder, because a task that acquired the lock in between must lose it, too.
        self.end_leases(key, LeaseLost::TakenAway);
    }

    /// Ends all leases of the key as lost, whichever tasks have them.
    fn end_leases(&self, key: &LockKey, reason: LeaseLost) {
        for kind in RequestKind::ALL {
            self.registry.event(key, kind, Event::LoseAll(reason));
        }
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").finish_non_exhaustive()
    }
}
