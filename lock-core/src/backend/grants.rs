//! Where grants arrive: the server grants a lock to a waiter directly, and notifies the waiter's process by a message.

use std::{
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use crate::{
    backend::owner::{EntryNumber, Owner, QueuedOwners},
    engine::reply::Notice,
    moment::Moment,
};

/// Receives the messages and connection changes of a store. Called with no mutex held, on the manager's thread. In memory: on the
/// thread of the request that caused the message, and within that request.
pub(crate) trait GrantListener: Send + Sync {
    /// An entry is notified. Its owner may be one whose key has another one by now, such as during its release.
    fn notified(self: Arc<Self>, owner: &Arc<Owner>, notice: Notice, now: Moment);

    /// There is a new connection since then, and messages may have been missed.
    fn reconnected(self: Arc<Self>, since: Moment);

    /// The connection ended then. A lease that the server of the next one does not know is lost.
    fn disconnected(self: Arc<Self>, since: Moment);

    /// The leases that the manager holds now.
    fn held(&self) -> HeldNow;
}

/// The leases that a manager holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldNow {
    pub(crate) count: usize,
    /// The time until the first of them ends, unless it is renewed.
    pub(crate) first_ends_in: Option<Duration>,
}

/// Where the messages for a manager's entries arrive.
#[derive(Default)]
pub(crate) struct Grants {
    pub(crate) owners: Arc<QueuedOwners>,
    listener: OnceLock<Weak<dyn GrantListener>>,
}

/// A message for one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) number: EntryNumber,
    /// What the proof is for.
    pub(crate) body: &'a str,
    pub(crate) notice: Notice,
    /// Larger than those of all earlier messages of this kind to the entry.
    pub(crate) stamp: u64,
    pub(crate) proof: &'a str,
}

/// What a message is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// It is a grant.
    Grant,
    /// It is only a reason to send a request to the server.
    Hint,
}

impl Grants {
    /// Sets the only listener of messages.
    pub(crate) fn listen(&self, listener: Weak<dyn GrantListener>) {
        self.listener.get_or_init(|| listener);
    }

    /// Handles a message that has arrived. If its entry is gone, nothing is done: giving up an entry makes the server grant the
    /// lock to the next waiter.
    ///
    /// A message that the server's scripts did not write, or that came before, is dropped: it costs no command, however often it
    /// comes.
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
        self.notify(&owner, notice, now);
    }

    /// Notifies an entry, for a store that needs no proof: see [`deliver`](Self::deliver) for an entry that is gone.
    pub(crate) fn notify_entry(&self, number: EntryNumber, notice: Notice, now: Moment) {
        if let Some(owner) = self.owners.find(number) {
            self.notify(&owner, notice, now);
        }
    }

    fn notify(&self, owner: &Arc<Owner>, notice: Notice, now: Moment) {
        if let Some(listener) = self.listener() {
            listener.notified(owner, notice, now);
        }
    }

    /// The listener, as long as there is one.
    pub(crate) fn listener(&self) -> Option<Arc<dyn GrantListener>> {
        self.listener.get()?.upgrade()
    }
}

impl std::fmt::Debug for Grants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grants").finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;
    use crate::{
        backend::owner_token::{OwnerTokens, Scheme},
        engine::reply::PushedGrant,
        fencing::FencingBlock,
        key::LockKey,
        mode::Mode,
        runtime::mutex::Mutex,
    };

    #[derive(Default)]
    struct Notified(Mutex<Vec<&'static str>>);

    impl GrantListener for Notified {
        fn notified(self: Arc<Self>, _: &Arc<Owner>, notice: Notice, _: Moment) {
            self.0.lock().push(match notice {
                Notice::Granted(_) => "granted",
                Notice::Contended => "contended",
                Notice::Hint => "hinted",
            });
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
        assert_eq!(*notified.0.lock(), ["granted", "contended"]);
    }
}
