//! One owner token of a key, and the records kept beside it as long as a request or a lease has it.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use crate::{
    key::LockKey,
    mode::Mode,
    store::{
        grants::{Entry, EntryNumber, Grants, QueueEntry},
        in_flight::{InFlight, ServerInFlight},
        known_tokens::ClockIndex,
        outcomes::{Acquired, Failure},
        owner_token::{OwnerToken, OwnerTokens},
    },
};

pub(crate) struct Owner {
    pub(crate) key: LockKey,
    /// The key as the server knows it.
    pub(crate) full_key: Arc<str>,
    /// The fencing clock of the key.
    pub(crate) clock: ClockIndex,
    pub(crate) mode: Mode,
    pub(crate) token: OwnerToken,
    /// Assigns a message to the request.
    entry: QueueEntry,
    /// The connections that its requests for the key left on.
    pub(crate) in_flight: InFlight,
    /// Those that the tries of its release left on.
    pub(crate) released_on: InFlight,
    /// The records of each of several servers.
    servers: OnceLock<Box<[Arc<ServerInFlight>]>>,
}

impl Owner {
    pub(crate) fn new(
        tokens: &OwnerTokens,
        grants: &Arc<Grants>,
        mode: Mode,
        key: &LockKey,
        full_key: Arc<str>,
        clock: ClockIndex,
    ) -> Self {
        let token = tokens.next(grants.scheme());
        Self {
            key: key.clone(),
            full_key,
            clock,
            mode,
            entry: grants.entry(mode),
            token,
            in_flight: InFlight::default(),
            released_on: InFlight::default(),
            servers: OnceLock::new(),
        }
    }

    /// The owner of an entry that has joined a queue.
    #[cfg(test)]
    pub(crate) fn of_entry(entry: Entry) -> Arc<Self> {
        let (grants, key) = (Arc::default(), LockKey::new("k"));
        let owner = Self {
            full_key: "k".into(),
            clock: 0,
            mode: entry.mode,
            entry: Grants::numbered_entry(&grants, entry.number, entry.mode),
            token: OwnerToken::numbered(entry.number),
            in_flight: InFlight::default(),
            released_on: InFlight::default(),
            servers: OnceLock::new(),
            key,
        };
        owner.join(entry.ttl);
        Arc::new(owner)
    }

    /// The number of its entry.
    pub(crate) fn number(&self) -> EntryNumber {
        self.entry.number()
    }

    /// Its entry in a queue, if it has joined one.
    pub(crate) fn entry(&self) -> Entry {
        self.entry.in_queue()
    }

    /// Its entry for joining a queue with this ttl. If it has joined before, its first ttl stays. From now on, messages for the entry
    /// find it.
    pub(crate) fn join(&self, ttl: Duration) -> Entry {
        self.entry.join(ttl, &self.key, &self.token)
    }

    /// The records of this many servers: always as many.
    pub(crate) fn servers(&self, count: usize) -> &[Arc<ServerInFlight>] {
        self.servers
            .get_or_init(|| (0..count).map(|_| Arc::default()).collect())
    }

    /// Notes what the reply to an acquire says of its copies. Returns whether all of them were executed or never will be.
    pub(crate) fn note_reply(&self, result: &Result<Acquired, Failure>) -> bool {
        let is_settled =
            matches!(result, Ok(acquired) if self.in_flight.is_settled_by(acquired.connection));
        if is_settled {
            self.in_flight.note_all_answered();
        }
        is_settled
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.number() == other.number()
    }
}

/// Without the owner token.
impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner")
            .field("key", &self.key)
            .field("entry", &self.entry())
            .finish_non_exhaustive()
    }
}
