//! Where the server tells a manager that one of its entries was granted.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    fencing::FencingToken,
    runtime::clock::Moment,
    store::{
        grants::{GrantMessage, Grants, MessageKind},
        in_flight::ConnectionId,
        redis::connection::{CLOCK, fencing_counter::LARGEST_TOKEN, is, wire::resp::Value},
    },
};

/// Stands before the channels that grants arrive on.
pub(crate) const GRANTS: &str = "__lock_core__:grants:";

/// So many channels are heard on one connection before those are dropped that nobody needs.
const MANY: usize = 512;

/// Whoever waits shows it more often than this.
const UNUSED: Duration = Duration::from_secs(10);

/// The channels of a manager, and who wants to know of its messages.
#[derive(Clone, Debug)]
pub(crate) struct PubSubDispatch {
    /// The one that is subscribed to with each new connection.
    pub(crate) channel: Arc<str>,
    /// With which the names of all channels of this manager end.
    manager: Arc<str>,
    grants: Arc<Grants>,
    kind: MessageKind,
    /// Those that are subscribed to one by one.
    channels: Option<Arc<SubscribedChannels>>,
}

/// The channels whose subscription is confirmed.
#[derive(Debug, Default)]
pub(crate) struct SubscribedChannels(Mutex<Channels>);

#[derive(Debug, Default)]
struct Channels {
    connection: Option<ConnectionId>,
    /// With when each was last of use.
    used: HashMap<String, Moment>,
    /// When the node last ended a subscription by itself.
    ended: Option<Moment>,
}

/// What became of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subscription {
    Heard,
    /// The node may have ended it again.
    Ended,
    /// It is heard, but most of the channels on its connection are of no use any more.
    Wasteful,
}

impl PubSubDispatch {
    pub(crate) fn new(channel: Arc<str>, manager: Arc<str>, grants: Arc<Grants>) -> Self {
        Self {
            channel,
            manager,
            grants,
            kind: MessageKind::Grant,
            channels: None,
        }
    }

    /// One whose messages are only a reason to ask.
    pub(crate) fn for_hints(self) -> Self {
        let kind = MessageKind::Hint;
        Self { kind, ..self }
    }

    /// One whose channels are subscribed to one by one.
    pub(crate) fn with(self, channels: Arc<SubscribedChannels>) -> Self {
        let channels = Some(channels);
        Self { channels, ..self }
    }

    /// One into which nothing comes.
    pub(crate) fn of_nobody(&self) -> Self {
        Self::new("".into(), self.manager.clone(), Arc::default())
    }

    /// Takes a message that the server sent by itself. What is no grant is none of ours.
    pub(crate) fn take(&self, words: &[Value]) {
        let [_kind, Value::BulkString(channel), rest @ ..] = words else {
            return;
        };
        if let Some(channels) = &self.channels
            && is(words, b"sunsubscribe")
        {
            return channels.end(channel);
        }
        let is_ours =
            channel.starts_with(GRANTS.as_bytes()) && channel.ends_with(self.manager.as_bytes());
        if let (true, [Value::BulkString(message)]) = (is_ours, rest)
            && let Some(message) = read(message)
        {
            self.grants.deliver(message, self.kind);
        }
    }

    /// The connection is gone.
    pub(crate) fn note_connection_change(&self) {
        self.grants.note_connection_change(CLOCK.now());
    }

    /// There is a new connection, and messages may have been missed.
    pub(crate) fn wake_all(&self) {
        self.grants.wake_all(CLOCK.now());
    }
}

impl SubscribedChannels {
    /// Whether this channel is heard on this connection. If it is, it counts as of use.
    pub(crate) fn are_heard(&self, channel: &str, connection: Option<ConnectionId>) -> bool {
        let mut channels = self.lock();
        let is_current = connection.is_some() && channels.connection == connection;
        match channels.used.get_mut(channel) {
            Some(used) if is_current => {
                *used = CLOCK.now();
                true
            }
            _ => false,
        }
    }

    /// Notes a subscription that was asked for at `sent`.
    pub(crate) fn note(
        &self,
        channel: &str,
        connection: ConnectionId,
        sent: Moment,
    ) -> Subscription {
        let now = CLOCK.now();
        let mut channels = self.lock();
        if channels.connection != Some(connection) {
            channels.used.clear();
            channels.connection = Some(connection);
        }
        // It may have been this one that ended.
        if channels.ended.is_some_and(|ended| ended >= sent) {
            return Subscription::Ended;
        }
        channels.used.insert(channel.to_owned(), now);
        let is_used = |used: &&Moment| now.since(**used) < UNUSED;
        let used = channels.used.values().filter(is_used).count();
        if channels.used.len() > MANY && used < MANY / 2 {
            Subscription::Wasteful
        } else {
            Subscription::Heard
        }
    }

    /// The node ended a subscription.
    fn end(&self, channel: &[u8]) {
        let mut channels = self.lock();
        channels.ended = Some(CLOCK.now());
        channels.used.retain(|known, _| known.as_bytes() != channel);
    }

    fn lock(&self) -> MutexGuard<'_, Channels> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of an entry, its fencing token, and the proof that the server granted it: see `scripts/queue.lua`.
fn read(message: &[u8]) -> Option<GrantMessage<'_>> {
    let (number, rest) = std::str::from_utf8(message).ok()?.split_once(' ')?;
    let (fencing, proof) = rest.split_once(' ')?;
    let fencing = fencing
        .parse()
        .ok()
        .filter(|token| *token < LARGEST_TOKEN)?;
    Some(GrantMessage {
        number: number.parse().ok()?,
        fencing: FencingToken::new(fencing),
        proof,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_numbers_and_a_proof_are_a_grant() {
        let message = GrantMessage {
            number: 7,
            fencing: FencingToken::new(1_795_151_176_455_149),
            proof: "5baa61e4",
        };
        assert_eq!(read(b"7 1795151176455149 5baa61e4"), Some(message));
        let odd = [
            &b""[..],
            b"7",
            b"7 ",
            b"7 1",
            b" 7 1",
            b"7 -1 a",
            b"x 1 a",
            b"7 99999999999999999999 a",
            b"7 9007199254740992 a",
            b"\xff 1 a",
        ];
        for message in odd {
            assert_eq!(read(message), None, "{message:?}");
        }
    }
}
