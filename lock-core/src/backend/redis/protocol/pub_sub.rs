//! The channels on which the server notifies a manager that one of its entries was granted.
//!
//! Grants are push messages of the third version of the protocol. If a server speaks only the second one, waiters poll.
//! Rejected: a second connection for those servers, which are few. Two connections that must begin and end together would need
//! a separate mechanism.

use std::sync::Arc;

use redis::{PushInfo, PushKind, Value};

use crate::{
    backend::{
        grants::{Grants, Message, MessageKind, News},
        owner_token::Scheme,
        redis::{
            topology::{Dispatch, companions::GRANTS, subscribed_channels::SubscribedChannels},
            transport::{CLOCK, capabilities::Capabilities, connection_events::ConnectionEvents},
        },
    },
    engine::reply::{Grant, Notice, PushedGrant},
    fencing::{FencingBlock, LARGEST_TOKEN},
    telemetry,
};

/// The channels of a manager, and the receiver of its messages.
#[derive(Clone, Debug)]
pub(crate) struct PubSubDispatch {
    /// The channel to which each new connection subscribes.
    channel: Arc<str>,
    /// The suffix of all channel names of this manager.
    manager: Arc<str>,
    grants: Arc<Grants>,
    kind: MessageKind,
    /// The channels that are subscribed to individually.
    channels: Option<Arc<SubscribedChannels>>,
}

impl PubSubDispatch {
    /// Creates a dispatch without a channel. `kind` says whether a message is a grant, or only a hint after which the manager
    /// asks the server.
    pub(crate) fn new(manager: Arc<str>, grants: Arc<Grants>, kind: MessageKind) -> Self {
        Self {
            channel: "".into(),
            manager,
            grants,
            kind,
            channels: None,
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
}

impl Dispatch for PubSubDispatch {
    fn of_channel(&self, channel: Arc<str>) -> Arc<dyn ConnectionEvents> {
        let dispatch = self.clone();
        Arc::new(Self {
            channel,
            ..dispatch
        })
    }

    fn of_channels(&self, channels: Arc<SubscribedChannels>) -> Arc<dyn ConnectionEvents> {
        let (channels, dispatch) = (Some(channels), self.clone());
        Arc::new(Self {
            channels,
            ..dispatch
        })
    }
}

impl ConnectionEvents for PubSubDispatch {
    fn channel(&self) -> &str {
        &self.channel
    }

    /// Handles a message that the server pushed, and ignores all but grants.
    fn pushed(&self, message: &PushInfo) {
        let [Value::BulkString(channel), rest @ ..] = &message.data[..] else {
            return;
        };
        match message.kind {
            PushKind::SUnsubscribe => {
                if let Some(channels) = &self.channels {
                    channels.end(channel);
                }
            }
            PushKind::Message | PushKind::SMessage => self.take_grant(channel, rest),
            _ => {}
        }
    }

    /// Logs that no grants arrive, and why.
    fn not_subscribed(&self, server: &str, why: &str) {
        tracing::warn!(
            server,
            why,
            "grants cannot be received from this server, or by this user: waiters poll"
        );
    }

    /// Notes the commands by which a new connection releases locks.
    fn opened(&self, capabilities: Capabilities) {
        self.grants.owners.note_scheme(if capabilities.scripts {
            Scheme::Grants
        } else {
            Scheme::Deletes
        });
    }

    /// Grants may have been published while there was no subscription.
    fn connected(&self) {
        self.grants.report(News::Connected(CLOCK.now()));
    }

    fn disconnected(&self) {
        self.grants.report(News::Disconnected(CLOCK.now()));
    }

    fn out_of_reach(&self, server: &str, cause: &str) {
        if !self.grants.report(News::OutOfReach { server, cause }) {
            telemetry::out_of_reach(server, cause, 0, None);
        }
    }
}

/// Reads the number of an entry, the message to it, and the proof that the server sent the message: see `scripts/grant.lua`.
fn read(message: &[u8]) -> Option<Message<'_>> {
    let (number, rest) = std::str::from_utf8(message).ok()?.split_once(' ')?;
    let (body, proof) = rest.rsplit_once(' ')?;
    let (notice, stamp) = read_notice(body)?;
    Some(Message {
        number: number.parse().ok()?,
        body,
        notice,
        stamp,
        proof,
    })
}

fn read_notice(body: &str) -> Option<(Notice, u64)> {
    let number = |text: &str| text.parse().ok().filter(|number| *number < LARGEST_TOKEN);
    if let Some(stamp) = body.strip_prefix("yield ") {
        return Some((Notice::Contended, number(stamp)?));
    }
    if let Some(time) = body.strip_prefix("done ") {
        return Some((Notice::Hint, number(time)?));
    }
    let mut words = body.split(' ');
    let fencing = number(words.next()?)?;
    let mut grant = Grant::from(FencingBlock::new(fencing, 1));
    let mut stamp = fencing;
    if let Some(word) = words.next() {
        stamp = number(word)?;
        grant.is_contended = words.next()? == "1";
        grant.permit = words.next()?.parse().ok();
        grant.has_more = words.next()? == "1";
    }
    let granted = Notice::Granted(PushedGrant { grant, stamp });
    words.next().is_none().then_some((granted, stamp))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(fencing: u64) -> PushedGrant {
        PushedGrant {
            grant: FencingBlock::new(fencing, 1).into(),
            stamp: fencing,
        }
    }

    #[test]
    fn only_numbers_and_a_proof_are_a_message() {
        let message = Message {
            number: 7,
            body: "1795151176455149",
            notice: Notice::Granted(granted(1_795_151_176_455_149)),
            stamp: 1_795_151_176_455_149,
            proof: "5baa61e4",
        };
        assert_eq!(read(b"7 1795151176455149 5baa61e4"), Some(message));
        let mut share = granted(5);
        share.stamp = 9;
        share.grant.is_contended = true;
        share.grant.permit = Some(3);
        let message = Message {
            body: "5 9 1 3 0",
            notice: Notice::Granted(share),
            stamp: 9,
            ..message
        };
        assert_eq!(read(b"7 5 9 1 3 0 5baa61e4"), Some(message));
        let message = Message {
            body: "yield 9",
            notice: Notice::Contended,
            ..message
        };
        assert_eq!(read(b"7 yield 9 5baa61e4"), Some(message));
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
            b"7 yield a",
            b"7 yield x a",
            b"7 5 9 a",
            b"7 5 9 1 3 a",
            b"7 5 9 1 3 0 1 a",
            b"7 5 x 1 3 0 a",
            b"\xff 1 a",
        ];
        for message in odd {
            assert_eq!(read(message), None, "{message:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn reading_a_message_never_panics_and_returns_what_was_written(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64),
            number in proptest::num::u64::ANY,
            fencing in 0..LARGEST_TOKEN,
            proof in "[0-9a-f]{0,40}",
        ) {
            if let Some(message) = read(&bytes) {
                proptest::prop_assert!(message.number.to_string().len() <= bytes.len());
            }
            let body = fencing.to_string();
            let text = format!("{number} {body} {proof}");
            let expected = Message {
                number,
                body: &body,
                notice: Notice::Granted(granted(fencing)),
                stamp: fencing,
                proof: &proof,
            };
            proptest::prop_assert_eq!(read(text.as_bytes()), Some(expected));
        }
    }
}
