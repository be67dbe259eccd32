//! Access to the backend of a manager below the driver, for the suite that every backend must pass.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{Acquire, Release, Renew, owner::Owner},
    engine::reply::{AcquireOutcome, QueueMode, ReleaseOutcome, Renewed},
    error::LockError,
    key::LockKey,
    manager::LockManager,
    mode::Mode,
    moment::Moment,
};

/// An owner token for a key of a manager, whose requests go to the backend without the driver.
#[derive(Debug)]
pub struct Claim {
    locks: LockManager,
    owner: Arc<Owner>,
}

/// The outcome of one try of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// `true` if the key held the owner token.
    pub was_ours: bool,
    /// `true` if no earlier request can acquire the key any more.
    pub is_certain: bool,
}

impl Claim {
    /// Creates a new owner token.
    #[must_use]
    pub fn new(locks: &LockManager, key: &str) -> Self {
        let context = locks.context();
        let (key, owners) = (LockKey::new(key.to_owned()), &context.grants.owners);
        let full_key = locks.inner.registry.full_key(&key);
        let clock = (context.clock_of)(&full_key);
        let token = context.owner_tokens.next(owners.scheme());
        let owner = Owner::new(token, owners, Mode::Exclusive, &key, full_key, clock);
        Self {
            locks: locks.clone(),
            owner: Arc::new(owner),
        }
    }

    /// Acquires the key, and returns the fencing token, or `None` if it is busy. The future may be polled anywhere.
    ///
    /// # Errors
    ///
    /// Returns the failure of the backend.
    pub fn acquire(
        &self,
        ttl: Duration,
    ) -> impl Future<Output = Result<Option<u64>, LockError>> + Send + use<> {
        let (context, owner) = (self.locks.context(), self.owner.clone());
        let answer = context.backend.acquire(Acquire {
            owner: owner.clone(),
            ttl,
            known_fencing: context.known_tokens.of(owner.clock),
            tokens: 1,
            queue_mode: QueueMode::DoNotQueue,
            queued_ttl: None,
            after: None,
        });
        async move {
            let answered = answer.await?;
            owner.in_flight.note_answer(answered.order);
            Ok(match answered.outcome {
                AcquireOutcome::Granted(grant) => Some(grant.tokens.last().into()),
                _ => None,
            })
        }
    }

    /// Renews the lease. Returns `true` if the key holds the owner token.
    ///
    /// # Errors
    ///
    /// Returns the failure of the backend.
    pub async fn renew(&self, ttl: Duration) -> Result<bool, LockError> {
        let context = self.locks.context();
        let (batch, within) = (
            vec![Renew::without_tokens(&self.owner, ttl)],
            context.reply_within(),
        );
        let renewed = context.request(|backend| backend.renew(batch, within));
        let renewed = renewed.await?.into_iter().next().transpose()?;
        Ok(matches!(renewed, Some(Renewed::Extended { .. })))
    }

    /// Tries once to release the key.
    ///
    /// # Errors
    ///
    /// Returns the failure of the backend.
    pub async fn release(&self) -> Result<Tried, LockError> {
        let context = self.locks.context();
        let answered = context.backend.release(Release {
            owner: self.owner.clone(),
            keep: None,
            result: None,
            known_fencing: context.known_tokens.of(self.owner.clock),
            may_be_queued: false,
            valid_until: Moment::NEVER,
        });
        let answered = answered.await?;
        Ok(Tried {
            was_ours: answered.outcome == ReleaseOutcome::Released,
            is_certain: self.owner.in_flight.note_answer(answered.order),
        })
    }
}
