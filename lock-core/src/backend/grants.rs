//! The reception of grants: the server grants a lock to a waiter directly, and notifies the waiter's process by a message.

use std::sync::{Arc, OnceLock};

use crate::{
    backend::owner::{EntryNumber, Owner, QueuedOwners},
    engine::reply::Notice,
    moment::Moment,
};

/// The events that a backend reports by itself.
#[derive(Clone, Copy)]
pub(crate) enum News<'a> {
    /// A notice for the entry of this owner. The key may have another owner by now, for example while this one is being released.
    Notice(&'a Arc<Owner>, Notice, Moment),
    /// A new connection was made at this moment, and messages may have been missed before it.
    Connected(Moment),
    /// The connection ended at this moment. A lease that the server of the next one does not know is lost.
    Disconnected(Moment),
    /// No connection can be made.
    OutOfReach { server: &'a str, cause: &'a str },
}

/// The callback of the driver, which is the only upward call of a backend. Called with no mutex held, on the manager's thread,
/// or in memory on the thread of the request that caused the notice, and within that request.
pub(crate) type Listener = Box<dyn Fn(News<'_>) + Send + Sync>;

/// The recipient of the messages for a manager's entries.
#[derive(Default)]
pub(crate) struct Grants {
    pub(crate) owners: Arc<QueuedOwners>,
    listener: OnceLock<Listener>,
}

/// A message for one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) number: EntryNumber,
    /// The text that the proof authenticates.
    pub(crate) body: &'a str,
    pub(crate) notice: Notice,
    /// Larger than those of all earlier messages of this kind to the entry.
    pub(crate) stamp: u64,
    pub(crate) proof: &'a str,
}

/// How a message may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// As a grant.
    Grant,
    /// Only as a reason to ask the server.
    Hint,
}

impl Grants {
    /// Sets the only listener of messages.
    pub(crate) fn listen(&self, listener: Listener) {
        self.listener.get_or_init(|| listener);
    }

    /// Handles a message that has arrived. If its entry is gone, nothing is done, because giving up an entry makes the server
    /// grant the lock to the next waiter.
    ///
    /// A message that the server's scripts did not write, or that has arrived before, is dropped. It costs no command, however
    /// often it arrives.
    #[cfg(feature = "redis")]
    pub(crate) fn deliver(&self, message: Message<'_>, kind: MessageKind, now: Moment) {
        let Some(owner) = self.owners.find(message.number) else {
            return;
        };
        if owner.token.proof_of(message.body) != message.proof {
            return;
        }
        if !owner.is_news(message.notice, message.stamp) {
            return;
        }
        let notice = match (kind, message.notice) {
            (MessageKind::Hint, Notice::Granted(_)) => Notice::Hint,
            (_, notice) => notice,
        };
        self.report(News::Notice(&owner, notice, now));
    }

    /// Notifies an entry, for a backend that needs no proof: see [`deliver`](Self::deliver) for an entry that is gone.
    pub(crate) fn notify_entry(&self, number: EntryNumber, notice: Notice, now: Moment) {
        if let Some(owner) = self.owners.find(number) {
            self.report(News::Notice(&owner, notice, now));
        }
    }

    /// Notifies the driver. Returns whether there is one: the store of one of several servers has none.
    pub(crate) fn report(&self, news: News<'_>) -> bool {
        let listener = self.listener.get();
        listener.map(|listener| listener(news)).is_some()
    }
}

impl std::fmt::Debug for Grants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grants").finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        backend::owner_token::{OwnerTokens, Scheme},
        engine::reply::PushedGrant,
        fencing::FencingBlock,
        key::LockKey,
        mode::Mode,
        runtime::mutex::Mutex,
    };

    /// A release may grant a share in the same microsecond in which an exclusive request arrives, so both messages have the same time.
    #[test]
    fn a_grant_and_a_request_after_it_are_each_reported_once() {
        let grants = Arc::<Grants>::default();
        let notified = Arc::<Mutex<Vec<_>>>::default();
        let heard = notified.clone();
        grants.listen(Box::new(move |news| {
            heard.lock().push(match news {
                News::Notice(_, Notice::Granted(_), _) => "granted",
                News::Notice(_, Notice::Contended, _) => "contended",
                _ => "other",
            });
        }));
        let token = OwnerTokens::of(None).next(Scheme::Grants);
        let (owners, key) = (&grants.owners, LockKey::new("k"));
        let owner = Owner::new(token, owners, Mode::Shared, &key, "k".into(), 0);
        let owner = Arc::new(owner);
        owner.join(Duration::from_secs(1));
        let granted = PushedGrant {
            grant: FencingBlock::new(5, 1).into(),
            stamp: 5,
        };
        let granted = ("5", Notice::Granted(granted));
        let contended = ("yield 5", Notice::Contended);
        for (body, notice) in [granted, contended, granted, contended] {
            let message = Message {
                number: owner.number(),
                body,
                notice,
                stamp: 5,
                proof: &owner.token.proof_of(body),
            };
            grants.deliver(message, MessageKind::Grant, Moment::from_nanos(0));
        }
        assert_eq!(*notified.lock(), ["granted", "contended"]);
    }
}
