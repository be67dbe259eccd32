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
    connection_change: Notify,
    /// When that was told last, in nanoseconds of the clock.
    changed_at: AtomicU64,
    /// In order, so that those who are roused together always ask in the same one: first come, first served.
    waiting: Mutex<BTreeMap<EntryNumber, Arc<Inbox>>>,
}

/// What arrived for one entry.
#[derive(Debug)]
struct Inbox {
    /// By which a grant is known to be for this entry, and to come from the server.
    token: OwnerToken,
    wake_up: Notify,
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
pub(crate) struct GrantMessage<'a> {
    pub(crate) number: EntryNumber,
    pub(crate) fencing: FencingToken,
    pub(crate) proof: &'a str,
}

/// What a message is worth.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// It is a grant.
    Grant,
    /// It is a reason to ask.
    Hint,
}

/// One entry; forgotten when dropped.
#[derive(Debug)]
pub(crate) struct QueueEntry {
    number: EntryNumber,
    inbox: Arc<Inbox>,
    grants: Arc<Grants>,
}

impl Default for Grants {
    fn default() -> Self {
        Self {
            last_number: AtomicU64::new(random_number()),
            connection_change: Notify::new(),
            changed_at: AtomicU64::new(0),
            waiting: Mutex::default(),
        }
    }
}

impl Grants {
    pub(crate) fn entry(self: &Arc<Self>, token: &OwnerToken) -> QueueEntry {
        let number = self.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        let inbox = Arc::new(Inbox {
            token: token.clone(),
            wake_up: Notify::new(),
            arrived: Mutex::default(),
        });
        self.lock().insert(number, inbox.clone());
        QueueEntry {
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
    pub(crate) fn deliver(&self, message: GrantMessage<'_>, kind: MessageKind) {
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
        if kind == MessageKind::Grant {
            arrived.granted = Some(message.fencing);
        }
        drop(arrived);
        inbox.wake_up.notify_one();
    }

    /// There is a new connection, and messages may have been missed: everybody shall ask.
    #[cfg(feature = "redis")]
    pub(crate) fn wake_all(&self, now: Moment) {
        self.note_connection_change(now);
        for inbox in self.lock().values() {
            inbox.wake_up.notify_one();
        }
    }

    /// The connection is gone: what is held shall be renewed, which makes a new one.
    #[cfg(feature = "redis")]
    pub(crate) fn note_connection_change(&self, now: Moment) {
        self.changed_at.fetch_max(now.as_nanos(), Ordering::AcqRel);
        self.connection_change.notify_one();
    }

    /// Waits for a connection to end, or for a new one; returns when that was. For one task.
    pub(crate) async fn connection_change(&self) -> Moment {
        self.connection_change.notified().await;
        Moment::from_nanos(self.changed_at.load(Ordering::Acquire))
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

impl QueueEntry {
    pub(crate) fn number(&self) -> EntryNumber {
        self.number
    }

    /// Waits for news: a grant, if there is one, or a reason to ask.
    ///
    /// Dropping the future loses no grant.
    pub(crate) async fn wake_up(&self) -> Option<FencingToken> {
        self.inbox.wake_up.notified().await;
        self.inbox.lock().granted.take()
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        self.grants.lock().remove(&self.number);
    }
}
