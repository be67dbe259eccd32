//! Where the server notifies a manager that one of its entries was granted.

use std::sync::Arc;

use redis::{PushInfo, PushKind, Value};

#[cfg(feature = "cluster")]
use crate::store::redis::connection::subscribed_channels::SubscribedChannels;
use crate::{
    fencing::FencingToken,
    store::{
        fencing_counter::LARGEST_TOKEN,
        grants::{GrantMessage, Grants, MessageKind},
        owner_token::Scheme,
        redis::connection::{CLOCK, capabilities::Capabilities},
    },
};

/// The prefix of the channels that grants arrive on.
pub(crate) const GRANTS: &str = "__lock_core__:grants:";

/// The channels of a manager, and the receiver of its messages.
#[derive(Clone, Debug)]
pub(crate) struct PubSubDispatch {
    /// The channel that is subscribed to with each new connection.
    pub(crate) channel: Arc<str>,
    /// The suffix of all channel names of this manager.
    manager: Arc<str>,
    grants: Arc<Grants>,
    kind: MessageKind,
    /// The channels that are subscribed to one by one.
    #[cfg(feature = "cluster")]
    channels: Option<Arc<SubscribedChannels>>,
}

impl PubSubDispatch {
    pub(crate) fn new(channel: Arc<str>, manager: Arc<str>, grants: Arc<Grants>) -> Self {
        Self {
            channel,
            manager,
            grants,
            kind: MessageKind::Grant,
            #[cfg(feature = "cluster")]
            channels: None,
        }
    }

    /// A dispatch whose messages are only a reason to ask.
    pub(crate) fn for_hints(self) -> Self {
        let kind = MessageKind::Hint;
        Self { kind, ..self }
    }

    /// A dispatch whose channels are subscribed to one by one.
    #[cfg(feature = "cluster")]
    pub(crate) fn with(self, channels: Arc<SubscribedChannels>) -> Self {
        let channels = Some(channels);
        Self { channels, ..self }
    }

    /// A dispatch without a channel.
    pub(crate) fn of_nobody(&self) -> Self {
        Self::new("".into(), self.manager.clone(), Arc::default())
    }

    /// Takes a message that the server pushed. A message that is no grant is ignored.
    pub(crate) fn take(&self, message: &PushInfo) {
        let [Value::BulkString(channel), rest @ ..] = &message.data[..] else {
            return;
        };
        match message.kind {
            #[cfg(feature = "cluster")]
            PushKind::SUnsubscribe => {
                if let Some(channels) = &self.channels {
                    channels.end(channel);
                }
            }
            PushKind::Message | PushKind::SMessage => self.take_grant(channel, rest),
            _ => {}
        }
    }

    fn take_grant(&self, channel: &[u8], rest: &[Value]) {
        let is_ours =
            channel.starts_with(GRANTS.as_bytes()) && channel.ends_with(self.manager.as_bytes());
        if let (true, [Value::BulkString(message)]) = (is_ours, rest)
            && let Some(message) = read(message)
        {
            self.grants.deliver(message, self.kind, CLOCK.now());
        }
    }

    /// The commands by which the locks of a new connection are released.
    pub(crate) fn note_capabilities(&self, capabilities: Capabilities) {
        self.grants.note_scheme(match capabilities {
            Capabilities::Scripts => Scheme::Grants,
            Capabilities::Commands(_) => Scheme::Deletes,
        });
    }

    /// The connection is gone.
    pub(crate) fn note_disconnected(&self) {
        self.grants.note_disconnected(CLOCK.now());
    }

    /// There is a new connection, and messages may have been missed.
    pub(crate) fn note_connected(&self) {
        self.grants.note_connected(CLOCK.now());
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

    proptest::proptest! {
        #[test]
        fn no_message_panics_and_what_is_read_is_what_was_written(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64),
            number in proptest::num::u64::ANY,
            fencing in 0..LARGEST_TOKEN,
            proof in "[0-9a-f]{0,40}",
        ) {
            if let Some(message) = read(&bytes) {
                proptest::prop_assert!(u64::from(message.fencing) < LARGEST_TOKEN);
            }
            let text = format!("{number} {fencing} {proof}");
            let expected = GrantMessage {
                number,
                fencing: FencingToken::new(fencing),
                proof: &proof,
            };
            proptest::prop_assert_eq!(read(text.as_bytes()), Some(expected));
        }
    }
}
