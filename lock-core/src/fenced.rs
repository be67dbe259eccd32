//! The store's side of a fencing token: refusing a holder that was paused beyond the end of its lease.

use std::{error::Error, fmt, future::Future};

pub use crate::fencing::Fence;
use crate::{fencing::FencingToken, lease::Lease};

/// A store that remembers, for one resource, the largest fencing token it was shown, and refuses smaller ones.
///
/// Refusing smaller tokens when writing is not enough. An old holder that was paused may read, and then the next holder reads. If
/// the old holder writes first, its token is still the largest that wrote, so the write succeeds. Its change is lost when the next
/// holder writes. So a holder announces its token before it reads, and writes only if no larger one was announced since.
/// [`Lease::update_fenced`] does the three steps in order.
///
/// The token alone is not enough where another server may take the place of the first, as with Sentinel and Cluster. While two
/// servers act as the primary, both can give out the same number. So a store remembers the holder beside the token, and refuses an
/// equal token of another holder. A [`Fence`] contains the token, the holder and the permit.
///
/// The holders of one shared phase have the same token, and 0 as the holder. The store accepts the fence of each of them, any
/// number of times. So a fence keeps out the shared holders of earlier phases, but cannot tell two holders of one phase apart. Work
/// that writes takes the lock exclusively.
///
/// With permits, several holders have the lock at a time. A later holder may take a free permit while the others go on. Tokens of
/// different permits say nothing about each other: a store that compared them would refuse holders with a valid lease. So it
/// remembers one fence for each [permit](Fence::permit). The resource is then what the permit stands for, such as one of several
/// accounts.
///
/// An example for SQLite and PostgreSQL: the table `account` has the columns `fencing_token BIGINT NOT NULL DEFAULT 0` and
/// `fencing_holder BIGINT NOT NULL DEFAULT 0`, and one row for each resource, which must exist.
///
/// ```sql
/// -- announce: refused if no row was changed
/// UPDATE account SET fencing_token = $2, fencing_holder = $3
///     WHERE id = $1 AND (fencing_token < $2 OR fencing_token = $2 AND fencing_holder = $3);
/// -- read
/// SELECT balance FROM account WHERE id = $1;
/// -- write: refused if no row was changed
/// UPDATE account SET balance = $4 WHERE id = $1 AND fencing_token = $2 AND fencing_holder = $3;
/// ```
///
/// Each statement is a transaction of its own. Two of them in one transaction would hide the announcement from other holders until
/// the commit.
pub trait FencedStore {
    /// The type that is read and written.
    type Value;
    /// The error of the store.
    type Error;

    /// Remembers the token and its holder, unless a larger token was announced, or the same token by another holder.
    ///
    /// With permits, only the tokens of the same permit count.
    ///
    /// # Errors
    ///
    /// The store's own error. It reaches the caller of [`Lease::update_fenced`] as [`FencedError::Store`]. A refusal is no error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the token remembered or not. Either is safe: the token is the holder's own.
    fn announce(
        &mut self,
        fence: Fence,
    ) -> impl Future<Output = Result<Fenced, Self::Error>> + Send;

    /// Reads the resource.
    ///
    /// # Errors
    ///
    /// [`FencedError::Store`], as with [`announce`](Self::announce).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future must leave the resource as it is.
    fn read(&mut self) -> impl Future<Output = Result<Self::Value, Self::Error>> + Send;

    /// Writes the resource, unless another token or holder was announced since.
    ///
    /// # Errors
    ///
    /// [`FencedError::Store`], as with [`announce`](Self::announce): whether the write was done is unknown.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future must leave the resource written or not, and never in part: use one statement, or one transaction.
    fn write(
        &mut self,
        fence: Fence,
        value: Self::Value,
    ) -> impl Future<Output = Result<Fenced, Self::Error>> + Send;
}

/// The store's reply to a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fenced {
    /// The token is the largest so far: the change was made.
    Accepted,
    /// A larger token was announced, or the same one by another holder: nothing was changed.
    Refused,
}

impl Fenced {
    /// Interprets the result of a statement that changes a row only if the token allows it, as those of [`FencedStore`] do.
    #[must_use]
    pub fn from_rows_changed(rows: u64) -> Self {
        if rows == 0 {
            Self::Refused
        } else {
            Self::Accepted
        }
    }
}

/// Why a fenced change was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FencedError<E> {
    /// Another holder has had the lock since, or has it on another server. Acquire the lock again, and never raise a token to try
    /// again.
    Refused(FencingToken),
    /// The store did not reply. Whether it made the change is unknown.
    Store(E),
}

impl<E> From<E> for FencedError<E> {
    fn from(error: E) -> Self {
        Self::Store(error)
    }
}

impl<E> fmt::Display for FencedError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(token) => write!(
                f,
                "the store refused fencing token {token}: another holder came after this one, or has the same token"
            ),
            Self::Store(_) => f.write_str("the store that checks fencing tokens failed"),
        }
    }
}

impl<E: Error + 'static> Error for FencedError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Refused(_) => None,
            Self::Store(error) => Some(error),
        }
    }
}

impl Lease {
    /// Changes what the lock protects, in a store that refuses a holder that lost the lock without noticing.
    ///
    /// Announces the fencing token, reads the value, and writes what `change` returns for it. A process that was stopped may do any
    /// other work after its lease has ended, beside the next holder. This change is safe even then, whatever clocks do.
    ///
    /// Of a lease with several keys, it announces the fence of the first key, [`key`](Self::key). Tokens of different keys say nothing
    /// about each other. So a store of what another key protects needs the fence of that key, from [`fences`](Self::fences).
    ///
    /// # Errors
    ///
    /// - [`FencedError::Refused`] if a later holder's token was announced: nothing was changed;
    /// - [`FencedError::Store`] with what the store said.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the token announced, which is harmless, and the change made or not.
    pub async fn update_fenced<S: FencedStore>(
        &self,
        store: &mut S,
        change: impl FnOnce(S::Value) -> S::Value,
    ) -> Result<(), FencedError<S::Error>> {
        let fence = self.fence();
        if store.announce(fence).await? == Fenced::Refused {
            return Err(FencedError::Refused(fence.token));
        }
        let value = change(store.read().await?);
        match store.write(fence, value).await? {
            Fenced::Accepted => Ok(()),
            Fenced::Refused => Err(FencedError::Refused(fence.token)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use super::*;
    use crate::{key::LockKey, manager::LockManager, options::LockOptions};

    /// A store in which another holder may announce a token between a read and the write that follows.
    #[derive(Default)]
    struct Store {
        largest: (u64, u64),
        value: i32,
        announced_meanwhile: Option<(u64, u64)>,
    }

    fn pair(fence: Fence) -> (u64, u64) {
        (fence.token.into(), fence.holder)
    }

    impl FencedStore for Store {
        type Value = i32;
        type Error = Infallible;

        async fn announce(&mut self, fence: Fence) -> Result<Fenced, Infallible> {
            let announced = pair(fence);
            if announced.0 < self.largest.0
                || announced.0 == self.largest.0 && announced.1 != self.largest.1
            {
                return Ok(Fenced::Refused);
            }
            self.largest = announced;
            Ok(Fenced::Accepted)
        }

        async fn read(&mut self) -> Result<i32, Infallible> {
            self.largest = self.announced_meanwhile.take().unwrap_or(self.largest);
            Ok(self.value)
        }

        async fn write(&mut self, fence: Fence, value: i32) -> Result<Fenced, Infallible> {
            if pair(fence) != self.largest {
                return Ok(Fenced::Refused);
            }
            self.value = value;
            Ok(Fenced::Accepted)
        }
    }

    async fn update(store: &mut Store) -> Result<(), FencedError<Infallible>> {
        let locks = LockManager::in_memory();
        let options = LockOptions::new(Duration::from_secs(10));
        let guard = locks.acquire("k", options).await.expect("free");
        guard.lease().update_fenced(store, |value| value + 1).await
    }

    #[tokio::test]
    async fn the_latest_holder_changes_the_store() {
        let mut store = Store::default();
        update(&mut store).await.expect("the first");
        update(&mut store).await.expect("a later one");
        assert_eq!(store.value, 2);
    }

    #[tokio::test]
    async fn a_late_holder_is_refused_before_it_reads() {
        let mut store = Store {
            largest: (u64::MAX, 0),
            announced_meanwhile: Some((0, 0)),
            ..Store::default()
        };
        let refused = update(&mut store).await;
        assert!(matches!(refused, Err(FencedError::Refused(_))));
        assert!(store.announced_meanwhile.is_some(), "it was not read");
    }

    #[tokio::test]
    async fn a_holder_that_is_overtaken_after_reading_is_refused_before_any_write() {
        let mut store = Store {
            announced_meanwhile: Some((u64::MAX, 0)),
            ..Store::default()
        };
        let refused = update(&mut store).await;
        assert!(matches!(refused, Err(FencedError::Refused(_))));
        assert_eq!(store.value, 0);
    }

    /// Two primaries of a split brain gave out one number.
    #[tokio::test]
    async fn of_two_holders_with_one_token_the_first_changes_the_store_as_often_as_it_likes() {
        let mut store = Store::default();
        let (locks, others) = (LockManager::in_memory(), LockManager::in_memory());
        let options = LockOptions::new(Duration::from_secs(10));
        let first = locks.acquire("k", options.clone()).await.expect("free");
        let second = others.acquire("k", options).await.expect("free there");
        let (first, second) = (first.lease(), second.lease());
        assert_ne!(first.fence().holder, second.fence().holder);
        let twin = Fence {
            token: first.fencing_token(),
            ..second.fence()
        };
        for holder in [&first, &first] {
            holder
                .update_fenced(&mut store, |value| value + 1)
                .await
                .expect("its own");
        }
        let other = store.announce(twin).await;
        assert_eq!(other, Ok(Fenced::Refused));
        let other = store.write(twin, 7).await;
        assert_eq!(other, Ok(Fenced::Refused));
        assert_eq!(store.value, 2);
    }

    #[tokio::test]
    async fn shared_holders_have_no_number_of_their_own_and_exclusive_ones_do() {
        let locks = LockManager::in_memory();
        let keys = ["reads", "writes"].map(LockKey::new);
        let options = LockOptions::new(Duration::from_secs(10));
        let own = [options.clone().shared(), options.clone()];
        let in_modes = keys.iter().zip(own);
        let guard = locks.acquire_all(in_modes, options).await;
        let lease = guard.expect("free").lease();
        let fences = lease.fences();
        assert_eq!(fences[0], (keys[0].clone(), lease.fence()));
        assert_eq!(lease.fence().holder, 0);
        assert_eq!(fences[1].0, keys[1]);
        assert_ne!(fences[1].1.holder, 0);
        let tokens = fences.into_iter().map(|(key, fence)| (key, fence.token));
        assert_eq!(tokens.collect::<Vec<_>>(), lease.fencing_tokens());
    }
}
