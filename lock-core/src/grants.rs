//! Where grants arrive: the server passes a lock straight to a waiter, and tells the waiter's process by a message.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::Notify;

use crate::{clock::Moment, token::FencingToken};

/// Names one entry for a key inside a manager; never zero, never reused.
pub(crate) type EntryNumber = u64;

/// The entries of a manager in the queues that wait for a grant.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    last_number: AtomicU64,
    unsettled: Notify,
    /// When that was told last, in nanoseconds of the clock.
    unsettled_at: AtomicU64,
    /// In order, so that those who are roused together always ask in the same one: first come, first served.
    waiting: Mutex<BTreeMap<EntryNumber, Arc<Inbox>>>,
}

/// What arrived for one entry.
#[derive(Debug, Default)]
struct Inbox {
    news: Notify,
    granted: Mutex<Option<FencingToken>>,
}

/// One entry; forgotten when dropped.
#[derive(Debug)]
pub(crate) struct Entry {
    number: EntryNumber,
    inbox: Arc<Inbox>,
    grants: Arc<Grants>,
}

impl Grants {
    pub(crate) fn entry(self: &Arc<Self>) -> Entry {
        let number = self.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        let inbox = Arc::<Inbox>::default();
        self.lock().insert(number, inbox.clone());
        Entry {
            number,
            inbox,
            grants: self.clone(),
        }
    }

    /// A grant has arrived. For an entry that nobody has any more there is nothing to do: whoever gave it up has the server
    /// take it back, which gives the lock to the next one if it was granted before.
    #[cfg(feature = "redis")]
    pub(crate) fn deliver(&self, number: EntryNumber, token: FencingToken) {
        let inbox = self.lock().get(&number).cloned();
        if let Some(inbox) = inbox {
            *inbox.lock() = Some(token);
            inbox.news.notify_one();
        }
    }

    /// One shall ask.
    #[cfg(feature = "redis")]
    pub(crate) fn rouse(&self, number: EntryNumber) {
        if let Some(inbox) = self.lock().get(&number) {
            inbox.news.notify_one();
        }
    }

    /// There is a new connection, and messages may have been missed: everybody shall ask.
    #[cfg(feature = "redis")]
    pub(crate) fn rouse_all(&self, now: Moment) {
        self.unsettle(now);
        for inbox in self.lock().values() {
            inbox.news.notify_one();
        }
    }

    /// The connection is gone: what is held shall be renewed, which makes a new one.
    #[cfg(feature = "redis")]
    pub(crate) fn unsettle(&self, now: Moment) {
        self.unsettled_at
            .fetch_max(now.as_nanos(), Ordering::AcqRel);
        self.unsettled.notify_one();
    }

    /// Waits for a connection to end, or for a new one; returns when that was. For one task.
    pub(crate) async fn unsettled(&self) -> Moment {
        self.unsettled.notified().await;
        Moment::from_nanos(self.unsettled_at.load(Ordering::Acquire))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<EntryNumber, Arc<Inbox>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Option<FencingToken>> {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    pub(crate) fn number(&self) -> EntryNumber {
        self.number
    }

    /// Waits for news: a grant, if there is one, or a reason to ask.
    ///
    /// Dropping the future loses no grant.
    pub(crate) async fn news(&self) -> Option<FencingToken> {
        self.inbox.news.notified().await;
        self.inbox.lock().take()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.grants.lock().remove(&self.number);
    }
}
