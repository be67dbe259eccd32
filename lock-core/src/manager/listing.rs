//! The locks that are held, one after the other.

use std::{collections::VecDeque, fmt, sync::Arc};

use crate::{
    error::LockError,
    inspect::{LockInfo, Sighting},
    key::LockKey,
    manager::LockManager,
    store::{Page, PagePosition},
};

/// A lock of a [`LockList`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListedLock {
    /// The key, without the manager's prefix.
    pub key: LockKey,
    /// What was seen of it.
    pub info: LockInfo,
}

/// The locks that are held, from [`LockManager::list`].
#[must_use = "nothing is asked before `next`"]
pub struct LockList {
    manager: LockManager,
    full_prefix: Arc<str>,
    next_page: Option<PagePosition>,
    seen: VecDeque<(String, Sighting)>,
}

impl LockManager {
    /// Lists the locks that are held and whose keys begin so, those of other libraries included. For operators: it looks at every key of
    /// the servers, a hundred at a time, while these go on to serve others.
    ///
    /// A lock that is held all the time is listed at least once, also across a fail-over, as far as that keeps it. One that comes or
    /// goes meanwhile is listed, or not, and so is one of a cluster whose slot is moved meanwhile. A lock may be listed twice. Many are
    /// if a connection breaks: its server is looked at anew. Strings under the manager's key prefix that are not locks are listed as
    /// locks of another library.
    ///
    /// ```
    /// # async fn operate(locks: lock_core::LockManager) -> Result<(), lock_core::LockError> {
    /// let mut held = locks.list("order:");
    /// while let Some(lock) = held.next().await {
    ///     let lock = lock?;
    ///     println!("{} by {}", lock.key, lock.info.holder);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn list(&self, prefix: &str) -> LockList {
        LockList {
            manager: self.clone(),
            full_prefix: format!("{}{prefix}", self.inner.registry.prefix).into(),
            next_page: Some(PagePosition::default()),
            seen: VecDeque::new(),
        }
    }
}

impl LockList {
    /// Returns the next lock, or nothing after the last one.
    ///
    /// # Errors
    ///
    /// [`LockError::Unavailable`] if a server did not reply: the next call asks it again. [`LockError::Invalid`] with Redlock, whose
    /// locks are on a majority of several servers: connect to one of them, and list what it has.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call asks for the same page again.
    pub async fn next(&mut self) -> Option<Result<ListedLock, LockError>> {
        // Bounded by the keys of the servers: each page is behind the last one.
        loop {
            if let Some((full_key, sighting)) = self.seen.pop_front() {
                return Some(Ok(self.listed(&full_key, sighting)));
            }
            let from = self.next_page.clone()?;
            let prefix = self.full_prefix.clone();
            let context = self.manager.context();
            match context.ask(|store| store.list(prefix, from)).await {
                Ok(Page { locks, next }) => {
                    self.seen = locks.into();
                    self.next_page = next;
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn listed(&self, full_key: &str, sighting: Sighting) -> ListedLock {
        let prefix = &*self.manager.inner.registry.prefix;
        let key = full_key.strip_prefix(prefix).unwrap_or(full_key);
        let key = LockKey::new(key);
        let info = self.manager.info(&key, sighting);
        ListedLock { key, info }
    }
}

impl fmt::Debug for LockList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockList")
            .field("prefix", &self.full_prefix)
            .finish_non_exhaustive()
    }
}
