//! Where grants arrive: the server passes a lock straight to a waiter, and tells the waiter's process by a message.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::Notify;

use crate::{
    fencing::FencingToken,
    runtime::clock::Moment,
    store::owner_token::{OwnerToken, random_number},
};

/// Names one entry for a key inside a manager; never zero, never reused, and below 2^53.
pub(crate) type EntryNumber = u64;

/// The entries of a manager in the queues that wait for a grant.
#[derive(Debug)]
pub(crate) struct Grants {
    /// Begins at random, so that a message for another manager's entry is not taken for one of ours, should its channel ever be
    /// ours as well.
    last_number: AtomicU64,
    unsettled: Notify,
    /// When that was told last, in nanoseconds of the clock.
    unsettled_at: AtomicU64,
    /// In order, so that those who are roused together always ask in the same one: first come, first served.
    waiting: Mutex<BTreeMap<EntryNumber, Arc<Inbox>>>,
}

/// What arrived for one entry.
#[derive(Debug)]
struct Inbox {
    /// By which a grant is known to be for this entry, and to come from the server.
    token: OwnerToken,
    news: Notify,
    arrived: Mutex<Arrived>,
}

#[derive(Debug, Default)]
struct Arrived {
    /// Not yet read.
    granted: Option<FencingToken>,
    /// The largest of all so far: no grant is sent twice, and each later one has a larger token.
    newest: u64,
}

/// A grant, as a message tells it.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) number: EntryNumber,
    pub(crate) fencing: FencingToken,
    pub(crate) proof: &'a str,
}

/// What a message is worth.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    /// It is a grant.
    AsAGrant,
    /// It is a reason to ask.
    AsAHint,
}

/// One entry; forgotten when dropped.
#[derive(Debug)]
pub(crate) struct Entry {
    number: EntryNumber,
    inbox: Arc<Inbox>,
    grants: Arc<Grants>,
}

impl Default for Grants {
    fn default() -> Self {
        Self {
            last_number: AtomicU64::new(random_number()),
            unsettled: Notify::new(),
            unsettled_at: AtomicU64::new(0),
            waiting: Mutex::default(),
        }
    }
}

impl Grants {
    pub(crate) fn entry(self: &Arc<Self>, token: &OwnerToken) -> Entry {
        let number = self.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        let inbox = Arc::new(Inbox {
            token: token.clone(),
            news: Notify::new(),
            arrived: Mutex::default(),
        });
        self.lock().insert(number, inbox.clone());
        Entry {
            number,
            inbox,
            grants: self.clone(),
        }
    }

    /// A grant has arrived. For an entry that nobody has any more there is nothing to do: whoever gave it up has the server
    /// take it back, which gives the lock to the next one if it was granted before.
    ///
    /// A message that the server's scripts did not write, or that was sent before, is dropped: it costs no command, however
    /// often it comes.
    #[cfg(feature = "redis")]
    pub(crate) fn deliver(&self, message: Message<'_>, counts: Counts) {
        let inbox = self.lock().get(&message.number).cloned();
        let Some(inbox) = inbox else { return };
        if inbox.token.proof_of(message.fencing) != message.proof {
            return;
        }
        let mut arrived = inbox.lock();
        if arrived.newest >= message.fencing.into() {
            return;
        }
        arrived.newest = message.fencing.into();
        if counts == Counts::AsAGrant {
            arrived.granted = Some(message.fencing);
        }
        drop(arrived);
        inbox.news.notify_one();
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
    fn lock(&self) -> MutexGuard<'_, Arrived> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.inbox.lock().granted.take()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.grants.lock().remove(&self.number);
    }
}
