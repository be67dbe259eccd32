//! Where grants arrive: the server grants a lock to a waiter directly, and notifies the waiter's process by a message.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    key::LockKey,
    mode::{Mode, RequestKind},
    runtime::{clock::Moment, mutex::Mutex},
    store::{
        outcomes::PushedGrant,
        owner_token::{OwnerToken, Scheme, random_number},
    },
};

/// Receives the messages and connection changes of a store. Called with no mutex held, on the manager's thread. In memory: on the
/// thread of the request that caused the message, and within that request.
pub(crate) trait GrantListener: Send + Sync {
    /// The server granted the lock to this entry.
    fn granted(
        self: Arc<Self>,
        key: &LockKey,
        kind: RequestKind,
        entry: EntryNumber,
        granted: PushedGrant,
    );

    /// An exclusive request waits for the share of this entry.
    fn contended(self: Arc<Self>, key: &LockKey, kind: RequestKind, entry: EntryNumber);

    /// A message is no more than a reason to ask the server. The lock may have been granted, or the body that is to run once has run.
    fn hinted(self: Arc<Self>, key: &LockKey, kind: RequestKind, now: Moment);

    /// There is a new connection since then, and messages may have been missed.
    fn reconnected(self: Arc<Self>, since: Moment);

    /// The connection ended then. A lease that the server of the next one does not know is lost.
    fn disconnected(self: Arc<Self>, since: Moment);

    /// The leases that the manager holds now.
    fn held(&self) -> HeldNow;
}

/// Names one entry for a key inside a manager; never zero, never reused, and below 2^53.
pub(crate) type EntryNumber = u64;

/// An entry in the queue of a backend, and among the holders of a lock that is not exclusive. It stays the same as long as requests
/// use its owner token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The number by which a grant names the entry.
    pub(crate) number: EntryNumber,
    /// The ttl of the lease that a grant makes.
    pub(crate) ttl: Duration,
    pub(crate) mode: Mode,
}

/// The leases that a manager holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldNow {
    pub(crate) count: usize,
    /// The time until the first of them ends, unless it is renewed.
    pub(crate) first_ends_in: Option<Duration>,
}

/// The entries of a manager in the queues of its servers.
pub(crate) struct Grants {
    /// Begins at random, so that a message for another manager's entry is not taken for one of ours, should both ever use the
    /// same channel.
    last_number: AtomicU64,
    /// Those that may be in a queue, or hold a lock as an entry. A lock that is free is taken without an entry.
    entries: Mutex<HashMap<EntryNumber, EntryRecord>>,
    listener: OnceLock<Weak<dyn GrantListener>>,
    /// Whether releases of this manager grant, as far as the last connection showed. They do not where scripts may not run.
    gives: AtomicBool,
}

struct EntryRecord {
    key: LockKey,
    mode: Mode,
    /// Proves that a message is for this entry, and comes from the server.
    token: OwnerToken,
    /// The largest stamp of all grants so far: no grant is sent twice, and each later one has a larger stamp.
    newest_grant: u64,
    /// The same for the messages about an exclusive request. The first one may have the stamp of the grant: within a microsecond, a
    /// release grants the share, and an exclusive request comes.
    newest_contended: u64,
    /// The same for the messages that the body has run.
    newest_done: u64,
}

/// A message for one entry.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) number: EntryNumber,
    /// What the proof is for.
    pub(crate) body: &'a str,
    pub(crate) content: MessageContent,
    pub(crate) proof: &'a str,
}

#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageContent {
    Granted(PushedGrant),
    /// An exclusive request waits for the share. With its stamp.
    Contended(u64),
    /// The body that waits to run once has run. With the server's time.
    Done(u64),
}

/// What a message is used for.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// It is a grant.
    Grant,
    /// It is only a reason to ask the server.
    Hint,
}

/// What is an entry as soon as it joins a queue; forgotten when dropped.
pub(crate) struct QueueEntry {
    number: EntryNumber,
    mode: Mode,
    /// The ttl with which it joined. Set before the first message of its grant can come.
    ttl: OnceLock<Duration>,
    grants: Arc<Grants>,
}

impl Default for Grants {
    fn default() -> Self {
        Self {
            last_number: AtomicU64::new(random_number()),
            entries: Mutex::default(),
            listener: OnceLock::new(),
            gives: AtomicBool::new(true),
        }
    }
}

impl Grants {
    /// Sets the only listener of messages.
    pub(crate) fn listen(&self, listener: Weak<dyn GrantListener>) {
        self.listener.get_or_init(|| listener);
    }

    /// The leases that the manager holds now.
    #[cfg(feature = "redis")]
    pub(crate) fn held(&self) -> HeldNow {
        let listener = self.listener.get().and_then(Weak::upgrade);
        listener.map_or_else(HeldNow::default, |listener| listener.held())
    }

    /// The scheme of new owner tokens. A lease keeps its own: if the rights change while it lasts, its waiters poll without need,
    /// or check once a second.
    pub(crate) fn scheme(&self) -> Scheme {
        if self.gives.load(Ordering::Relaxed) {
            Scheme::Grants
        } else {
            Scheme::Deletes
        }
    }

    /// A connection was made, and it is known how locks are released on it.
    #[cfg(feature = "redis")]
    pub(crate) fn note_scheme(&self, scheme: Scheme) {
        self.gives
            .store(scheme == Scheme::Grants, Ordering::Relaxed);
    }

    pub(crate) fn entry(self: &Arc<Self>, mode: Mode) -> QueueEntry {
        QueueEntry {
            number: self.last_number.fetch_add(1, Ordering::Relaxed) + 1,
            mode,
            ttl: OnceLock::new(),
            grants: self.clone(),
        }
    }

    #[cfg(test)]
    pub(crate) fn numbered_entry(
        grants: &Arc<Self>,
        number: EntryNumber,
        mode: Mode,
    ) -> QueueEntry {
        let mut entry = grants.entry(mode);
        entry.number = number;
        entry
    }

    /// Handles a message that has arrived. If its entry is gone, nothing is done: giving up an entry makes the server grant the
    /// lock to the next waiter.
    ///
    /// A message that the server's scripts did not write, or that came before, is dropped: it costs no command, however often it
    /// comes.
    #[cfg(feature = "redis")]
    pub(crate) fn deliver(&self, message: Message<'_>, kind: MessageKind, now: Moment) {
        let token = match self.entries.lock().get(&message.number) {
            Some(record) => record.token.clone(),
            None => return,
        };
        if token.proof_of(message.body) != message.proof {
            return;
        }
        let mut entries = self.entries.lock();
        let Some(record) = entries.get_mut(&message.number) else {
            return;
        };
        let (newest, stamp) = match message.content {
            MessageContent::Granted(granted) => (&mut record.newest_grant, granted.stamp),
            MessageContent::Contended(stamp) => (&mut record.newest_contended, stamp),
            MessageContent::Done(time) => (&mut record.newest_done, time),
        };
        if *newest >= stamp {
            return;
        }
        *newest = stamp;
        let (key, mode) = (record.key.clone(), record.mode.kind());
        drop(entries);
        let Some(listener) = self.listener() else {
            return;
        };
        match (kind, message.content) {
            (MessageKind::Grant, MessageContent::Granted(granted)) => {
                listener.granted(&key, mode, message.number, granted);
            }
            (MessageKind::Hint, MessageContent::Granted(_)) | (_, MessageContent::Done(_)) => {
                listener.hinted(&key, mode, now);
            }
            (_, MessageContent::Contended(_)) => {
                listener.contended(&key, mode, message.number);
            }
        }
    }

    /// The lock was granted to an entry, by a store that needs no proof of it: see [`deliver`](Self::deliver) for an entry that is gone.
    pub(crate) fn granted(&self, number: EntryNumber, granted: PushedGrant) {
        self.notify(number, |listener, key, kind| {
            listener.granted(key, kind, number, granted);
        });
    }

    /// The same for an exclusive request that waits for the share of an entry.
    pub(crate) fn contended(&self, number: EntryNumber) {
        self.notify(number, |listener, key, kind| {
            listener.contended(key, kind, number);
        });
    }

    /// The same for the result of a body that an entry waits to run once.
    pub(crate) fn done(&self, number: EntryNumber, now: Moment) {
        self.notify(number, |listener, key, kind| {
            listener.hinted(key, kind, now);
        });
    }

    /// Whether an entry has an owner.
    pub(crate) fn is_alive(&self, number: EntryNumber) -> bool {
        self.entries.lock().contains_key(&number)
    }

    fn notify(
        &self,
        number: EntryNumber,
        notify: impl FnOnce(Arc<dyn GrantListener>, &LockKey, RequestKind),
    ) {
        let entries = self.entries.lock();
        let record = entries.get(&number);
        let notified = record.map(|record| (record.key.clone(), record.mode.kind()));
        drop(entries);
        if let Some((key, kind)) = notified
            && let Some(listener) = self.listener()
        {
            notify(listener, &key, kind);
        }
    }

    /// There is a new connection, and messages may have been missed.
    #[cfg(feature = "redis")]
    pub(crate) fn note_connected(&self, now: Moment) {
        if let Some(listener) = self.listener() {
            listener.reconnected(now);
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn note_disconnected(&self, now: Moment) {
        if let Some(listener) = self.listener() {
            listener.disconnected(now);
        }
    }

    fn listener(&self) -> Option<Arc<dyn GrantListener>> {
        self.listener.get()?.upgrade()
    }
}

impl std::fmt::Debug for Grants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grants").finish_non_exhaustive()
    }
}

impl QueueEntry {
    pub(crate) fn number(&self) -> EntryNumber {
        self.number
    }

    /// The entry for joining a queue with this ttl. An entry that joined before keeps its first ttl.
    pub(crate) fn join(&self, ttl: Duration, key: &LockKey, token: &OwnerToken) -> Entry {
        self.ttl.get_or_init(|| {
            let record = EntryRecord {
                key: key.clone(),
                mode: self.mode,
                token: token.clone(),
                newest_grant: 0,
                newest_contended: 0,
                newest_done: 0,
            };
            self.grants.entries.lock().insert(self.number, record);
            ttl
        });
        self.in_queue()
    }

    /// The entry as it is in the queue, if it is there at all.
    pub(crate) fn in_queue(&self) -> Entry {
        Entry {
            number: self.number,
            ttl: self.ttl.get().copied().unwrap_or_default(),
            mode: self.mode,
        }
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        if self.ttl.get().is_some() {
            self.grants.entries.lock().remove(&self.number);
        }
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;
    use crate::{fencing::FencingBlock, store::owner_token::OwnerTokens};

    #[derive(Default)]
    struct Notified(Mutex<Vec<&'static str>>);

    impl GrantListener for Notified {
        fn granted(self: Arc<Self>, _: &LockKey, _: RequestKind, _: EntryNumber, _: PushedGrant) {
            self.0.lock().push("granted");
        }

        fn contended(self: Arc<Self>, _: &LockKey, _: RequestKind, _: EntryNumber) {
            self.0.lock().push("contended");
        }

        fn hinted(self: Arc<Self>, _: &LockKey, _: RequestKind, _: Moment) {
            self.0.lock().push("hinted");
        }

        fn reconnected(self: Arc<Self>, _: Moment) {
            self.0.lock().push("reconnected");
        }

        fn disconnected(self: Arc<Self>, _: Moment) {
            self.0.lock().push("disconnected");
        }

        fn held(&self) -> HeldNow {
            HeldNow::default()
        }
    }

    /// Within a microsecond, a release grants a share, and an exclusive request comes. Both messages have the same time.
    #[test]
    fn a_grant_and_a_request_behind_it_are_each_notified_once() {
        let grants = Arc::<Grants>::default();
        let notified = Arc::<Notified>::default();
        let listener: Weak<dyn GrantListener> = Arc::<Notified>::downgrade(&notified);
        grants.listen(listener);
        let token = OwnerTokens::of_this_process().next(Scheme::Grants);
        let entry = grants.entry(Mode::Shared);
        entry.join(Duration::from_secs(1), &LockKey::new("k"), &token);
        let granted = PushedGrant {
            grant: FencingBlock::new(5, 1).into(),
            stamp: 5,
        };
        let granted = ("5", MessageContent::Granted(granted));
        let contended = ("yield 5", MessageContent::Contended(5));
        for (body, content) in [granted, contended, granted, contended] {
            let message = Message {
                number: entry.number(),
                body,
                content,
                proof: &token.proof_of(body),
            };
            grants.deliver(message, MessageKind::Grant, Moment::from_nanos(0));
        }
        assert_eq!(*notified.0.lock(), ["granted", "contended"]);
    }
}
