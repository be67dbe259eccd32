//! The store's side of a fencing token: refusing a holder that was paused beyond the end of its lease.

use std::{error::Error, fmt, future::Future};

use crate::{fencing::FencingToken, lease::Lease};

/// A store that remembers, for one resource, the largest fencing token it was shown, and refuses smaller ones.
///
/// Refusing smaller tokens when writing is not enough. An old holder that was paused may read, and then the next holder reads. If
/// the old holder writes first, its token is still the largest that wrote, so the write succeeds. Its change is lost when the next
/// holder writes. So a holder announces its token before it reads, and writes only if no larger one was announced since.
/// [`Lease::update_fenced`] does the three steps in order.
///
/// In SQLite and in PostgreSQL, on a table `account` with a column `fencing_token BIGINT NOT NULL DEFAULT 0`, one row for each
/// resource, which must be there:
///
/// ```sql
/// -- announce: refused if no row was changed
/// UPDATE account SET fencing_token = $2 WHERE id = $1 AND fencing_token <= $2;
/// -- read
/// SELECT balance FROM account WHERE id = $1;
/// -- write: refused if no row was changed
/// UPDATE account SET balance = $3 WHERE id = $1 AND fencing_token = $2;
/// ```
///
/// Each statement is a transaction of its own. Two of them in one transaction would hide the announcement from others until the
/// end.
pub trait FencedStore {
    /// The type that is read and written.
    type Value;
    /// The error of the store.
    type Error;

    /// Remembers the token, unless a larger one was announced.
    ///
    /// # Errors
    ///
    /// The store's own error; it reaches the caller of [`Lease::update_fenced`] as [`FencedError::Store`], here and below. A
    /// refusal is no error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the token remembered or not. Either is safe: the token is the holder's own.
    fn announce(
        &mut self,
        token: FencingToken,
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

    /// Writes the resource, unless another token was announced since.
    ///
    /// # Errors
    ///
    /// [`FencedError::Store`], as with [`announce`](Self::announce): whether the write was done is unknown.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future must leave the resource written or not, and never in part: one statement, or one transaction.
    fn write(
        &mut self,
        token: FencingToken,
        value: Self::Value,
    ) -> impl Future<Output = Result<Fenced, Self::Error>> + Send;
}

/// The store's reply to a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fenced {
    /// It is the largest so far: done.
    Accepted,
    /// There was a larger one: nothing was changed.
    Refused,
}

impl Fenced {
    /// Interprets the result of a statement that changes a row only if the token allows it: as above.
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
    /// Another holder has had the lock since. The store is right: never raise a token and try again. Acquire the lock again.
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
                "the store refused fencing token {token}: another holder came after this one"
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
    /// Announces the fencing token, reads, and writes what `change` makes of it. Nothing else that happens while a lease is held
    /// is safe from a process that was stopped. This is safe, whatever clocks do.
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
        let token = self.fencing_token();
        if store.announce(token).await? == Fenced::Refused {
            return Err(FencedError::Refused(token));
        }
        let value = change(store.read().await?);
        match store.write(token, value).await? {
            Fenced::Accepted => Ok(()),
            Fenced::Refused => Err(FencedError::Refused(token)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use super::*;
    use crate::{LockManager, LockOptions};

    /// A store in which another holder may announce a token between a read and the write that follows.
    #[derive(Default)]
    struct Store {
        largest: u64,
        value: i32,
        announced_meanwhile: Option<u64>,
    }

    impl FencedStore for Store {
        type Value = i32;
        type Error = Infallible;

        async fn announce(&mut self, token: FencingToken) -> Result<Fenced, Infallible> {
            let token = u64::from(token);
            if token < self.largest {
                return Ok(Fenced::Refused);
            }
            self.largest = token;
            Ok(Fenced::Accepted)
        }

        async fn read(&mut self) -> Result<i32, Infallible> {
            self.largest = self.announced_meanwhile.take().unwrap_or(self.largest);
            Ok(self.value)
        }

        async fn write(&mut self, token: FencingToken, value: i32) -> Result<Fenced, Infallible> {
            if u64::from(token) != self.largest {
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
    async fn whoever_is_late_is_refused_before_it_reads() {
        let mut store = Store {
            largest: u64::MAX,
            announced_meanwhile: Some(0),
            ..Store::default()
        };
        let refused = update(&mut store).await;
        assert!(matches!(refused, Err(FencedError::Refused(_))));
        assert!(store.announced_meanwhile.is_some(), "it was not read");
    }

    #[tokio::test]
    async fn whoever_is_overtaken_after_reading_is_refused_though_nobody_has_written() {
        let mut store = Store {
            announced_meanwhile: Some(u64::MAX),
            ..Store::default()
        };
        let refused = update(&mut store).await;
        assert!(matches!(refused, Err(FencedError::Refused(_))));
        assert_eq!(store.value, 0);
    }
}
