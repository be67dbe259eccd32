//! The time-limited right to hold a lock, as its holder observes it.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    driver::{hold::Leases, lease_state::LeaseState},
    engine::{event::Event, reply::Renewed},
    error::{LeaseLost, LockError},
    failure::Failure,
    fencing::{Fence, FencingToken},
    key::LockKey,
};

/// The time-limited right to hold a lock, as an observer sees it.
///
/// Clones are cheap, and may be passed around and kept, but they do not keep the lock held. The lease is renewed in the
/// background until its [`LockGuard`](crate::guard::LockGuard) is released or dropped. It is lost if renewals fail for too
/// long, or if another client takes the key away.
///
/// Several keys that were acquired [at once](crate::manager::LockManager::acquire_all) have one lease, which is lost as
/// soon as one of the keys is lost.
///
/// # Examples
///
/// ```
/// # async fn f(locks: lock_core::LockManager) -> Result<(), lock_core::LockError> {
/// use std::time::Duration;
/// use lock_core::LockOptions;
///
/// let guard = locks.acquire("nightly-report", LockOptions::default()).await?;
/// let lease = guard.lease();
/// // Before a side effect: fails if the lease may end within a second.
/// lease.ensure(Duration::from_secs(1))?;
/// println!("{} is held under token {}", lease.key(), lease.fencing_token());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Lease {
    pub(crate) leases: Leases,
}

impl Lease {
    pub(crate) fn new(leases: Leases) -> Self {
        Self { leases }
    }

    /// Returns the key that is locked. With several keys, it is the one that was written first.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.leases.first().key
    }

    /// Returns the number by which the store that the lock protects can refuse a holder that was paused.
    ///
    /// It is the token of [`key`](Self::key). Data that another key of the lease protects needs that key's own token, from
    /// [`fencing_tokens`](Self::fencing_tokens). Tokens grow from one holder of a key to the next, and are not comparable
    /// with the tokens of another key.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.leases.first().fencing
    }

    /// Returns the values that the store compares: the fencing token, the manager that holds the lease, and the permit.
    ///
    /// It is the fence of [`key`](Self::key). The module [`fenced`](crate::fenced) has the three statements with which a
    /// store refuses a holder that was paused.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = lock_core::LockManager::in_memory();
    /// use lock_core::LockOptions;
    ///
    /// let guard = locks.acquire("account:42", LockOptions::default()).await?;
    /// let fence = guard.lease().fence();
    /// // The parameters `$2` and `$3` of the three statements. Both numbers are below 2^53.
    /// let token = i64::try_from(fence.token.get())?;
    /// let holder = i64::try_from(fence.holder)?;
    /// # assert!(token > 0 && holder > 0);
    /// # Ok(guard.release().await?)
    /// # }
    /// ```
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.leases.first().fence()
    }

    /// Returns the keys of the lease in the order in which they were written, without duplicates, each with its
    /// [fence](Self::fence).
    #[must_use]
    pub fn fences(&self) -> Vec<(LockKey, Fence)> {
        let leases = self.leases.all().iter();
        leases
            .map(|lease| (lease.key.clone(), lease.fence()))
            .collect()
    }

    /// Returns the number of the permit if the lock was acquired with [`permits`](crate::options::LockOptions::permits);
    /// `None` in other modes.
    ///
    /// Permits are numbered from 0. No two holders have the same permit of a key at the same time, and a new holder gets
    /// the lowest free permit, so the permit can select one of several connections, accounts or ports. With several keys,
    /// it is the permit of [`key`](Self::key).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// # let manager = lock_core::LockManager::in_memory();
    /// # let accounts = ["first", "second", "third"];
    /// use lock_core::LockOptions;
    ///
    /// let options = LockOptions::default().permits(accounts.len());
    /// let guard = manager.acquire("partner", options).await?;
    /// let account = guard.lease().permit().map(|permit| accounts[usize::from(permit)]);
    /// # let _ = account;
    /// # guard.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn permit(&self) -> Option<u16> {
        self.leases.first().permit
    }

    /// Returns the keys of the lease in the order in which they were written, without duplicates, each with its fencing
    /// token.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// # let locks = lock_core::LockManager::in_memory();
    /// use lock_core::LockOptions;
    ///
    /// let guard = locks.acquire_all(["account:4", "account:7"], LockOptions::default()).await?;
    /// for (key, token) in guard.lease().fencing_tokens() {
    ///     println!("{key} is held under token {token}");
    /// }
    /// # guard.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn fencing_tokens(&self) -> Vec<(LockKey, FencingToken)> {
        let leases = self.leases.all().iter();
        leases
            .map(|lease| (lease.key.clone(), lease.fencing))
            .collect()
    }

    /// Returns how much longer the lease is certain to last without another renewal; zero once it has ended.
    ///
    /// The value is a lower bound. It counts from before the request was sent, minus an allowance for clocks that run at
    /// different rates: 1 % of the ttl and 2 ms. With several keys, it is the shortest of their times.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.leases.remaining()
    }

    /// Returns `true` if the lease has ended. An ended lease never becomes valid again.
    ///
    /// This is a local check, which sends no message and cannot know what the server has not reported yet.
    /// [`verify`](Self::verify) asks the server.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.leases.ended().is_some()
    }

    /// Waits until the lease ends, and returns how it ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// Stops the work of a guard when its lease is lost, as [`run`](crate::manager::LockManager::run) does by itself:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// # let locks = lock_core::LockManager::in_memory();
    /// # async fn work() {}
    /// use lock_core::LockOptions;
    ///
    /// let guard = locks.acquire("nightly-report", LockOptions::default()).await?;
    /// let lease = guard.lease();
    /// tokio::select! {
    ///     reason = lease.lost() => eprintln!("stopped: {reason}"),
    ///     () = work() => {}
    /// }
    /// # guard.release().await
    /// # }
    /// ```
    pub async fn lost(&self) -> LeaseLost {
        match self.leases.ended() {
            Some((_, reason)) => reason,
            None => self.leases.lost().await,
        }
    }

    /// Checks that the lease is certain to last for at least this much longer. Call it right before a side effect.
    ///
    /// # Errors
    ///
    /// - [`LockError::Lost`] if the lease has ended;
    /// - [`LockError::Unavailable`] if the lease is not certain to last that long, because renewals are failing;
    /// - [`LockError::Invalid`] if `at_least` is more than half of the ttl: even a lease that is renewed on time cannot
    ///   always be certain to last that long.
    pub fn ensure(&self, at_least: Duration) -> Result<(), LockError> {
        let each = || self.leases.all().iter();
        each().try_for_each(|lease| check_length(lease, at_least))?;
        self.leases.check()?;
        each().try_for_each(|lease| check_remaining(lease, at_least))
    }

    /// Asks the server whether each key of the lease is still held, in one round trip.
    ///
    /// This is useful where a hypervisor may have paused the process, which no local clock can detect. The call does not
    /// renew the lease.
    ///
    /// # Errors
    ///
    /// - [`LockError::Lost`] if the lease has ended, or the server says that a key is gone or has another holder;
    /// - [`LockError::Unavailable`] if the server did not reply, which leaves it unknown whether the lease is held.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn verify(&self) -> Result<(), LockError> {
        let context = &self.leases.first().context;
        self.leases.check()?;
        // A renewal never shortens a lease, so a renewal by the remaining time does no more than compare the token, except
        // that it restores the expiry of a key if another client removed it.
        let now = context.clock.now();
        let compare = |lease: &Arc<LeaseState>| {
            let left = lease.valid_until().since(now);
            lease.renewal(left.max(Duration::from_millis(1)))
        };
        let batch = self.leases.all().iter().map(compare).collect();
        let replies = context
            .request(|store| store.renew(batch, context.reply_within()))
            .await
            .map_err(|error| error.about(self.key()))?;
        let mut replies = replies.into_iter();
        let mut known = Ok(());
        for lease in self.leases.all() {
            let result = note_renewal(lease, replies.next());
            known = known.and(result);
        }
        // A lost key takes precedence over a key whose state is unknown. The lease may also have run out while the reply
        // was in flight.
        self.leases.check()?;
        known
    }
}

/// Refuses a time that a renewed lease does not always have left, even if all renewals succeed.
fn check_length(lease: &LeaseState, at_least: Duration) -> Result<(), LockError> {
    let ttl = lease.ttl;
    if lease.is_renewed() && at_least > ttl / 2 {
        return Err(LockError::invalid(format!(
            "a lease with a ttl of {ttl:?} cannot always be certain to last {at_least:?} longer: choose a ttl of at least \
             twice that time"
        ))
        .about(&lease.key));
    }
    Ok(())
}

fn check_remaining(lease: &LeaseState, at_least: Duration) -> Result<(), LockError> {
    let remaining = lease.remaining();
    if remaining < at_least {
        return Err(LockError::unavailable(format!(
            "the lease is certain to last only {remaining:?} longer, less than the requested {at_least:?}"
        ))
        .about(&lease.key));
    }
    Ok(())
}

/// Evaluates the server's reply for one key, and ends its lease if the server says that another client has it.
fn note_renewal(
    lease: &LeaseState,
    result: Option<Result<Renewed, Failure>>,
) -> Result<(), LockError> {
    match result {
        Some(Ok(Renewed::Extended { .. })) => Ok(()),
        Some(Ok(Renewed::NotOurs)) => {
            let reason = lease.end(LeaseLost::TakenAway);
            if let Some(listener) = lease.context.ticking.listener() {
                listener.happened(&lease.key, lease.kind(), Event::Lose(lease.id, reason));
            }
            Err(lease.lost_error(reason))
        }
        Some(Err(failure)) => Err(LockError::from(failure).about(&lease.key)),
        None => {
            Err(LockError::unavailable("the backend did not reply for this key").about(&lease.key))
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Lease");
        match self.leases.all() {
            [one] => shown
                .field("key", &one.key)
                .field("fencing_token", &one.fencing),
            _ => shown.field("fencing_tokens", &self.fencing_tokens()),
        };
        shown
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// Returns how much longer a lease is certain to last, without recording that it has ended: an observer changes nothing.
#[cfg(feature = "simulation")]
#[must_use]
pub fn certain_for(lease: &Lease) -> Duration {
    lease.leases.certain_for()
}
