//! The list of the locks that are held, which is read page by page.

use std::{collections::VecDeque, fmt, sync::Arc};

use crate::{
    backend::{Page, PagePosition},
    error::LockError,
    inspect::{ListedLock, Sighting},
    key::LockKey,
    manager::LockManager,
};

/// The list of held locks that [`LockManager::list`] returns.
#[must_use = "no request is sent before `next` is called"]
pub struct LockList {
    manager: LockManager,
    full_prefix: Arc<str>,
    next_page: Option<PagePosition>,
    seen: VecDeque<(String, Sighting)>,
}

impl LockManager {
    /// Lists the locks that are held under keys that begin with `prefix`, including those of other libraries.
    ///
    /// This is meant for operators: it examines every key of the servers, a hundred at a time, while the servers continue
    /// to serve other requests.
    ///
    /// A lock that is held all the time is listed at least once, even across a fail-over that preserves it. A lock that is
    /// acquired or released in the meantime may be missing, as may a lock in a cluster slot that is being moved. A lock may
    /// be listed twice. After a connection has broken, many are, because the server is read again from the start. Strings
    /// under the manager's key prefix that are not locks are listed as locks of another library.
    ///
    /// # Examples
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
    /// Returns the next lock, or `None` after the last one.
    ///
    /// # Errors
    ///
    /// - [`LockError::Unavailable`] if a server did not reply; the next call asks it again;
    /// - [`LockError::Invalid`] if the server's user lacks the right `+scan`, which locks do not need. The message has the
    ///   line that grants it;
    /// - [`LockError::Invalid`] if a proxy distributes keys over several servers: list the locks of each server instead;
    /// - [`LockError::Invalid`] with Redlock, since each lock is on a majority of several servers: connect to one of them,
    ///   and list its locks.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call asks for the same page again.
    pub async fn next(&mut self) -> Option<Result<ListedLock, LockError>> {
        // Bounded by the number of keys on the servers, because each page continues from the previous one.
        loop {
            if let Some((full_key, sighting)) = self.seen.pop_front() {
                return Some(Ok(self.listed(&full_key, sighting)));
            }
            let from = self.next_page.clone()?;
            let prefix = self.full_prefix.clone();
            let context = self.manager.context();
            match context.request(|store| store.list(prefix, from)).await {
                Ok(Page { locks, next }) => {
                    // A free lock may be on the page because its result is still stored.
                    let held = locks.into_iter().filter(|(_, seen)| seen.holders > 0);
                    self.seen = held.collect();
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
