//! The owner of a key: one owner token, its entry in a queue, and its records. An owner exists as long as a request or a lease
//! refers to it.

use std::{
    any::Any,
    collections::HashMap,
    fmt,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    backend::{
        in_flight::InFlight,
        owner_token::{OwnerToken, Scheme, random_number},
    },
    engine::reply::Notice,
    fencing::ClockIndex,
    key::LockKey,
    mode::Mode,
    runtime::mutex::Mutex,
};

/// The number of one entry for a key within a manager; never zero, never reused, and below 2^53.
pub(crate) type EntryNumber = u64;

/// An entry in the queue of a backend, and among the holders of a lock that is not exclusive. It does not change as long as
/// requests use its owner token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The number by which a grant names the entry.
    pub(crate) number: EntryNumber,
    /// The ttl of the lease that a grant makes.
    pub(crate) ttl: Duration,
    pub(crate) mode: Mode,
}

pub(crate) struct Owner {
    pub(crate) key: LockKey,
    /// The key as the server knows it.
    pub(crate) full_key: Arc<str>,
    /// The fencing clock of the key.
    pub(crate) clock: ClockIndex,
    pub(crate) mode: Mode,
    /// The owner token, which also proves that a message is for this entry and comes from the server.
    pub(crate) token: OwnerToken,
    number: EntryNumber,
    /// Set when its entry joins a queue, before the first message of its grant can arrive. Boxed, because a free lock is taken
    /// without a queue.
    joined: OnceLock<Box<Joined>>,
    queued: Arc<QueuedOwners>,
    /// The orders on which its requests for the key were sent.
    pub(crate) in_flight: InFlight,
    /// The orders on which the tries of its release were sent.
    pub(crate) released_on: InFlight,
    /// Data that its backend stores with it: see [`Owner::kept`].
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// The part that exists only for an entry that has joined a queue.
struct Joined {
    ttl: Duration,
    /// The largest stamps of its messages so far, by kind of notice. No message is sent twice, and each later one of a kind has
    /// a larger stamp. Messages of two kinds may have the same stamp: within a microsecond, a release grants the share, and an
    /// exclusive request arrives.
    newest: [AtomicU64; 3],
}

/// The owners of a manager whose entries messages may address.
pub(crate) struct QueuedOwners {
    /// Begins at random, so that a message for another manager's entry is not mistaken for one of ours, should both ever use
    /// the same channel.
    last_number: AtomicU64,
    /// `true` if releases of this manager only delete, as far as the last connection showed, because scripts may not run there.
    only_delete: AtomicBool,
    /// The owners that may be in a queue, or hold a lock as an entry. A free lock is taken without an entry.
    owners: Mutex<HashMap<EntryNumber, Weak<Owner>>>,
}

impl Default for QueuedOwners {
    fn default() -> Self {
        Self {
            last_number: AtomicU64::new(random_number()),
            only_delete: AtomicBool::new(false),
            owners: Mutex::default(),
        }
    }
}

impl QueuedOwners {
    /// Returns the scheme of new owner tokens. A lease keeps its own: if the rights change while it lasts, its waiters poll
    /// unnecessarily, or check once a second.
    pub(crate) fn scheme(&self) -> Scheme {
        if self.only_delete.load(Ordering::Relaxed) {
            Scheme::Deletes
        } else {
            Scheme::Grants
        }
    }

    /// Records how locks are released on a connection that was just made.
    pub(crate) fn note_scheme(&self, scheme: Scheme) {
        let only_delete = scheme == Scheme::Deletes;
        self.only_delete.store(only_delete, Ordering::Relaxed);
    }

    /// Returns the owner of an entry.
    pub(crate) fn find(&self, number: EntryNumber) -> Option<Arc<Owner>> {
        self.owners.lock().get(&number)?.upgrade()
    }

    /// Returns `true` if an entry has an owner.
    pub(crate) fn is_alive(&self, number: EntryNumber) -> bool {
        self.owners.lock().contains_key(&number)
    }
}

impl Owner {
    pub(crate) fn new(
        token: OwnerToken,
        queued: &Arc<QueuedOwners>,
        mode: Mode,
        key: &LockKey,
        full_key: Arc<str>,
        clock: ClockIndex,
    ) -> Self {
        Self {
            key: key.clone(),
            full_key,
            clock,
            mode,
            token,
            number: queued.last_number.fetch_add(1, Ordering::Relaxed) + 1,
            joined: OnceLock::new(),
            queued: queued.clone(),
            in_flight: InFlight::default(),
            released_on: InFlight::default(),
            kept: OnceLock::new(),
        }
    }

    /// Creates the owner of an entry that has joined a queue.
    #[cfg(test)]
    pub(crate) fn of_entry(entry: Entry) -> Arc<Self> {
        let (token, key) = (OwnerToken::numbered(entry.number), LockKey::new("k"));
        let mut owner = Self::new(token, &Arc::default(), entry.mode, &key, "k".into(), 0);
        owner.number = entry.number;
        let owner = Arc::new(owner);
        owner.join(entry.ttl);
        owner
    }

    /// Returns the number of its entry.
    pub(crate) fn number(&self) -> EntryNumber {
        self.number
    }

    /// Returns its entry in a queue, if it has joined one.
    pub(crate) fn entry(&self) -> Entry {
        Entry {
            number: self.number,
            ttl: self
                .joined
                .get()
                .map(|joined| joined.ttl)
                .unwrap_or_default(),
            mode: self.mode,
        }
    }

    /// Returns its entry for joining a queue with this ttl. If it has joined before, its first ttl stays. From now on, messages
    /// for the entry find it.
    pub(crate) fn join(self: &Arc<Self>, ttl: Duration) -> Entry {
        self.joined.get_or_init(|| {
            let mut owners = self.queued.owners.lock();
            owners.insert(self.number, Arc::downgrade(self));
            Box::new(Joined {
                ttl,
                newest: Default::default(),
            })
        });
        self.entry()
    }

    /// Records the stamp of a message. Returns whether it is the first message of its kind with so large a stamp.
    pub(crate) fn is_news(&self, notice: Notice, stamp: u64) -> bool {
        let kind = match notice {
            Notice::Granted(_) => 0,
            Notice::Contended => 1,
            Notice::Hint => 2,
        };
        // No message is sent to an entry that has not joined.
        let joined = self.joined.get();
        joined.is_some_and(|joined| joined.newest[kind].fetch_max(stamp, Ordering::AcqRel) < stamp)
    }

    /// Returns the data that its backend stores with it, made by the first call. A backend always asks for the same type.
    #[cfg(feature = "redis")]
    pub(crate) fn kept<T: Any + Send + Sync>(&self, new: impl FnOnce() -> T) -> &T {
        let kept = self.kept.get_or_init(|| Box::new(new()));
        kept.downcast_ref().expect("its backend keeps one type")
    }

    /// Returns an owner with the same token, for one of several servers.
    #[cfg(feature = "redis")]
    pub(crate) fn at_one_server(&self) -> Self {
        let (key, full_key) = (&self.key, self.full_key.clone());
        Self::new(
            self.token.clone(),
            &self.queued,
            self.mode,
            key,
            full_key,
            self.clock,
        )
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.joined.get().is_some() {
            self.queued.owners.lock().remove(&self.number);
        }
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

/// Omits the owner token.
impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner")
            .field("key", &self.key)
            .field("entry", &self.entry())
            .finish_non_exhaustive()
    }
}
