//! The acquire of several keys in one call.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    task::{Context, Poll},
};

use crate::{
    driver::hold::{Hold, Leases},
    engine::{
        event::Event,
        terms::{Terms, deadline},
    },
    error::LockError,
    guard::LockGuard,
    key::LockKey,
    lease::Lease,
    manager::{
        LockManager,
        run::{NOT_STORED, release_now},
    },
    mode::Mode,
    moment::Moment,
    options::{AutoRenew, KeyInList, LockOptions, Wait},
};

impl LockManager {
    /// Acquires the locks of several keys: all of them within one wait, or none.
    ///
    /// The keys are acquired one after the other, in byte order, whatever their order in the list, which
    /// prevents deadlocks between callers with keys in common. This takes one round trip for each key, and one more without
    /// renewal. Keys that have been acquired are held and renewed while the call waits for the others. A key that is given
    /// twice is acquired once. There may be at most 64 different keys. If there are more, lock something that they have in
    /// common instead.
    ///
    /// The guard and its [`Lease`] represent all keys. The keys are released together, and lost together: if one key is
    /// lost, all are lost. The other keys are then no longer renewed. They are released with the guard, or end with their
    /// ttl, as with every lost lease. [`run_all`](Self::run_all) releases them at once, since it drops its body.
    ///
    /// Each option has the same meaning as for one key, applied to all keys together. `max_hold`, `min_hold` and
    /// [`without_renewal`](LockOptions::without_renewal) count from when the last key was acquired. Each key counts as one
    /// lease towards the manager's caps.
    ///
    /// All keys have the mode of the options. For keys in different modes, pass a list of pairs of a key and its options,
    /// whose mode is used for that key. Any other option that they set must have the same value as in the call's options,
    /// since all keys are held as one.
    ///
    /// # Inside a body
    ///
    /// A body that holds all of the keys gets them at once, with the same leases, whatever their order, and even if several
    /// outer bodies acquired them. If the body holds none of the keys, it waits for them as it would for another single
    /// key. Locks inside locks must be nested in one order everywhere, or two tasks wait for each other until one of their
    /// waits is over. If the body holds only some of the keys, the call is refused, because another task that acquires all
    /// of them at once could hold the others, and wait for those of this body. Acquire all of the keys where the first one
    /// is acquired.
    ///
    /// # Errors
    ///
    /// - [`LockError::Busy`] if another holder had one of the keys until the wait was over. The error names the first such
    ///   key;
    /// - [`LockError::Unavailable`] if the backend did not reply, or the manager was shut down or is at a cap;
    /// - [`LockError::Invalid`] if there are no keys or too many, if a key is in the list in two modes, or if the options
    ///   of a key differ from the call's in more than the mode;
    /// - [`LockError::Invalid`] if a key or an option is out of bounds, or if a key holds something that is not a lock;
    /// - [`LockError::Invalid`] if the running body holds only some of the keys, or holds one of them in a mode that
    ///   conflicts with this call;
    /// - [`LockError::Lost`] if the running body holds all of the keys, and one of them by a lease that has been lost.
    ///
    /// When the wait is over, each remaining key is still requested once, until one is not free. A reply that is in flight
    /// then is awaited for at most three command time-outs.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the position in the wait queue. Keys that have been acquired are released in the
    /// background, within one round trip. If the connection is gone and none can be made, they end with their ttl.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// # let manager = lock_core::LockManager::in_memory();
    /// # let (from, to) = (7, 4);
    /// use lock_core::LockOptions;
    ///
    /// let keys = [format!("account:{from}"), format!("account:{to}")];
    /// let guard = manager.acquire_all(keys, LockOptions::default()).await?;
    /// for (key, token) in guard.lease().fencing_tokens() {
    ///     println!("UPDATE … WHERE key = '{key}' AND fencing_token <= {token}");
    /// }
    /// guard.release().await?;
    ///
    /// // Locks the prices in shared mode, and the order exclusively.
    /// let options = LockOptions::default();
    /// let keys = [("prices", options.clone().shared()), ("order:42", options.clone())];
    /// let guard = manager.acquire_all(keys, options).await?;
    /// # guard.release().await
    /// # }
    /// ```
    pub async fn acquire_all(
        &self,
        keys: impl IntoIterator<Item: KeyInList>,
        options: LockOptions,
    ) -> Result<LockGuard, LockError> {
        let wanted = self.all_wanted(keys, &options)?;
        let admission = self.acquire_keys(wanted.list, wanted.terms).await?;
        admission.into_hold().map(LockGuard::new)
    }

    /// Runs a body while holding the locks of several keys, and drops the body when one of them is lost.
    ///
    /// It behaves like [`run`](Self::run) with the keys of [`acquire_all`](Self::acquire_all), and the documentation of
    /// both applies. The attribute does the same with a list of keys. [`LockError::Lost`] names the key that was lost. The
    /// other keys are released after the body was dropped, in the background and within one round trip.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`acquire_all`](Self::acquire_all), and [`LockError::Lost`] if one of the keys was lost while
    /// the body ran.
    ///
    /// # Panics
    ///
    /// Panics only if the body does, and releases the locks in that case, too.
    ///
    /// # Cancel safety
    ///
    /// Until the body begins, dropping the future has the same effect as with [`acquire_all`](Self::acquire_all). After
    /// that, it has the same effect as with [`run`](Self::run).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// # let manager = lock_core::LockManager::in_memory();
    /// # use lock_core::LockOptions;
    /// let keys = ["account:7", "account:4"];
    /// let moved = manager
    ///     .run_all(keys, LockOptions::default(), |lease| async move { lease.fencing_tokens().len() })
    ///     .await?;
    /// assert_eq!(moved, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_all<T, F, Fut>(
        &self,
        keys: impl IntoIterator<Item: KeyInList>,
        options: LockOptions,
        body: F,
    ) -> Result<T, LockError>
    where
        F: FnOnce(Lease) -> Fut,
        Fut: Future<Output = T>,
    {
        let wanted = self.all_wanted(keys, &options)?;
        self.run_wanted(wanted, body, NOT_STORED, release_now).await
    }

    pub(super) async fn acquire_several(
        &self,
        keys: &[(LockKey, Mode)],
        terms: Terms,
    ) -> Result<Hold, LockError> {
        let deadline = deadline(terms.wait, self.context().clock.now());
        if let Some(held) = self.held_or_checked(keys)? {
            return Ok(held);
        }
        // Leases that are already acquired must not run out during the wait for the others.
        let mut each = Terms {
            renew: AutoRenew::On,
            ..terms
        };
        // Repeats only if a lease was lost while this task waited for another key, or was not polled. Ends with the wait at
        // the latest: after that, `spend` allows only requests that do not wait.
        loop {
            // A lease that is lost before the leases are joined is noticed afterwards, by `ended`.
            let acquired = self.acquire_each(keys, &mut each, deadline).await?;
            let hold = Hold::joined(&self.inner.registry, acquired);
            let leases = hold.leases();
            if terms.renew == AutoRenew::Off {
                self.renew_once(leases).await;
            }
            if leases.ended().is_none() {
                hold.begin();
                return Ok(hold);
            }
            spend(&mut each, deadline, self.context().clock.now());
        }
    }

    /// Stops the renewals that kept the leases valid during the wait for the other keys. A last renewal gives each lease
    /// its whole ttl from now on. If this renewal gets no reply, the lease lasts as long as it did before.
    ///
    /// If the reply is late or never arrives, the backend's time-out ends the wait. If the process was paused, the caller
    /// notices lost leases by its check after this call. If the future is dropped, all leases are released, since the
    /// caller owns the hold.
    async fn renew_once(&self, leases: &Leases) {
        let context = self.context();
        let sent = context.clock.now();
        for lease in leases.all() {
            lease.note_unrenewed();
            let event = Event::StopRenewing(lease.id);
            self.inner.registry.event(&lease.key, lease.kind(), event);
        }
        let all = leases.all().iter();
        let batch = all.map(|lease| lease.renewal(lease.ttl));
        let batch = batch.collect();
        let within = context.reply_within();
        let Ok(replies) = context.request(|store| store.renew(batch, within)).await else {
            return;
        };
        for (lease, reply) in leases.all().iter().zip(replies) {
            let registry = &self.inner.registry;
            registry.renewed(lease, sent, &reply, within);
        }
    }

    /// Acquires one key after the other, in byte order, and returns their holds in the order of the list.
    ///
    /// If this fails or the future is dropped, the keys acquired so far are released.
    async fn acquire_each(
        &self,
        keys: &[(LockKey, Mode)],
        terms: &mut Terms,
        deadline: Option<Moment>,
    ) -> Result<Vec<Hold>, LockError> {
        let mut order: Vec<_> = keys.iter().enumerate().collect();
        order.sort_by_key(|(_, (key, _))| key);
        let mut acquired = BTreeMap::new();
        for (position, (key, mode)) in order {
            terms.mode = *mode;
            let join = |context: &mut Context<'_>| {
                Poll::Ready(self.join_queue(key, *terms, deadline, context.waker()))
            };
            let wait = poll_fn(join).await?;
            acquired.insert(position, wait.await?.into_hold()?);
            spend(terms, deadline, self.context().clock.now());
        }
        Ok(acquired.into_values().collect())
    }
}

/// Once the deadline has passed, changes the terms so that the remaining keys are requested without waiting.
fn spend(terms: &mut Terms, deadline: Option<Moment>, now: Moment) {
    if deadline.is_some_and(|deadline| now >= deadline) {
        terms.wait = Wait::No;
    }
}
