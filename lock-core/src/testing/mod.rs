//! Faults on demand, for the tests of whoever uses locks.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    error::LeaseLost,
    key::{IntoLockKey, LockKey},
    lock::registry::Registry,
    testing::faulty_store::FaultyStore,
};

pub(crate) mod faulty_store;

/// Has things go wrong for one in-memory manager: for your tests.
///
/// It comes with the manager, from [`LockManager::in_memory_with_faults`](crate::LockManager::in_memory_with_faults). All
/// faults follow tokio's clock, so a test with `start_paused = true` takes no time. What your code sees is what it would see
/// with a server: the same errors, the same times, bodies dropped in the same way.
///
/// | fault | a body that runs | an acquire |
/// | --- | --- | --- |
/// | [`lose`](Self::lose), [`expire`](Self::expire) | is dropped, [`LockError::Lost`](crate::LockError::Lost) | finds the lock free |
/// | [`busy`](Self::busy) | is dropped, `Lost` | [`LockError::Busy`](crate::LockError::Busy) after its wait |
/// | [`unavailable`](Self::unavailable) | goes on until its lease ends, then `Lost` | [`LockError::Unavailable`](crate::LockError::Unavailable) after its wait |
/// | [`delay`](Self::delay) | goes on, if renewals come in time | takes longer |
///
/// # Examples
///
/// Two functions, and what they do in each of these cases:
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
/// async fn a_short_wait_is_waited() {
///     let (locks, faults) = LockManager::in_memory_with_faults();
///     faults.busy_for("order:42", Duration::from_secs(1));
///     assert!(with_locks(locks, charge(42)).await.is_ok());
/// }
///
/// # /*
/// #[tokio::test(start_paused = true)]
/// # */
/// async fn nothing_is_charged_while_the_server_is_away() {
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
/// async fn an_import_that_stood_still_is_not_taken_up_again() {
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
/// async fn a_slow_server_makes_nothing_fail() {
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
/// #     run(a_short_wait_is_waited());
/// #     run(nothing_is_charged_while_the_server_is_away());
/// #     run(an_import_ends_when_its_lock_is_lost());
/// #     run(an_import_that_stood_still_is_not_taken_up_again());
/// #     run(a_slow_server_makes_nothing_fail());
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
    store: Arc<FaultyStore>,
}

impl Faults {
    pub(crate) fn new(registry: Arc<Registry>, store: Arc<FaultyStore>) -> Self {
        Self { registry, store }
    }

    /// Takes a lock away from its holder, as an operator does who deletes the key.
    ///
    /// The holder knows it at once, where with a server it is told at its next renewal: its lease is
    /// [`LeaseLost::TakenAway`], its body is never polled again, and the lock is free.
    ///
    /// # Panics
    ///
    /// If nobody holds it through this manager: a fault that hits nothing proves nothing.
    #[track_caller]
    pub fn lose(&self, key: impl IntoLockKey) {
        self.end(&key.into_lock_key(), LeaseLost::TakenAway);
    }

    /// Ends a lease, as if it could not be renewed in time.
    ///
    /// As [`lose`](Self::lose), with [`LeaseLost::Expired`]: what a process sees that was stopped for longer than its ttl.
    ///
    /// # Panics
    ///
    /// As [`lose`](Self::lose).
    #[track_caller]
    pub fn expire(&self, key: impl IntoLockKey) {
        self.end(&key.into_lock_key(), LeaseLost::Expired);
    }

    /// Gives a lock to a holder elsewhere, who keeps it until [`heal`](Self::heal).
    ///
    /// It renews a lease of 10 s, so that is what `retry_after` says. Whoever holds the lock through this manager loses it at
    /// once. [`LockManager::force_release`](crate::LockManager::force_release) takes it from the holder elsewhere.
    pub fn busy(&self, key: impl IntoLockKey) {
        self.occupy(&key.into_lock_key(), None);
    }

    /// Gives a lock to a holder elsewhere, for so long.
    ///
    /// As [`busy`](Self::busy), with an end.
    pub fn busy_for(&self, key: impl IntoLockKey, span: Duration) {
        self.occupy(&key.into_lock_key(), Some(span));
    }

    /// Has every request refused until [`heal`](Self::heal), as when there is no connection to the server.
    ///
    /// Acquires ask again until their wait is over; leases that are held last until their ttl, and are renewed if it ends in
    /// time.
    pub fn unavailable(&self) {
        self.store.go_away(None);
    }

    /// Has every request refused for so long; see [`unavailable`](Self::unavailable).
    pub fn unavailable_for(&self, span: Duration) {
        self.store.go_away(Some(span));
    }

    /// Has every answer come so much later than its request, until [`heal`](Self::heal).
    ///
    /// An answer that takes as long as a command's time-out (1 s, see
    /// [`command_timeout`](crate::LockManagerBuilder::command_timeout)) is none, though the request was executed. A renewal has
    /// less time: 500 ms at most, so from there on leases run out.
    pub fn delay(&self, by: Duration) {
        self.store.delay(by);
    }

    /// Ends what is going wrong: everybody elsewhere lets go, and the backend answers again, at once.
    ///
    /// A lease that was lost stays lost.
    pub fn heal(&self) {
        self.store.heal();
    }

    #[track_caller]
    fn end(&self, key: &LockKey, reason: LeaseLost) {
        assert!(
            self.registry.is_held(key),
            "nobody holds the lock `{key}` through this manager"
        );
        // Before the holder knows: then the next waiter finds it free.
        self.store.take_away(self.registry.full_key(key));
        self.registry.lose_key(key, reason);
    }

    fn occupy(&self, key: &LockKey, span: Option<Duration>) {
        self.store.occupy(self.registry.full_key(key), span);
        // Afterwards: a task that took it in between has lost it too.
        self.registry.lose_key(key, LeaseLost::TakenAway);
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").finish_non_exhaustive()
    }
}
