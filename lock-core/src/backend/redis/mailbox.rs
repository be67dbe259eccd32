//! Where the server tells a manager that one of its entries was granted.

use std::sync::Arc;

use crate::{
    backend::redis::{
        connection::{CLOCK, is},
        listener::Heard,
        resp::Value,
        slots::GRANTS,
    },
    grants::Grants,
    token::FencingToken,
};

/// The channels of a manager, and who wants to know of its messages.
#[derive(Clone, Debug)]
pub(super) struct Mailbox {
    /// The one that is subscribed to with each new connection.
    pub(super) channel: Arc<str>,
    /// With which the names of all channels of this manager end.
    manager: Arc<str>,
    grants: Arc<Grants>,
    counts: Counts,
    /// Those that are subscribed to one by one.
    heard: Option<Arc<Heard>>,
}

/// What a message is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    /// It is a grant.
    AsAGrant,
    /// It is a reason to ask.
    AsAHint,
}

impl Mailbox {
    pub(super) fn new(channel: Arc<str>, manager: Arc<str>, grants: Arc<Grants>) -> Self {
        Self {
            channel,
            manager,
            grants,
            counts: Counts::AsAGrant,
            heard: None,
        }
    }

    /// One whose messages are only a reason to ask.
    pub(super) fn for_hints(self) -> Self {
        let counts = Counts::AsAHint;
        Self { counts, ..self }
    }

    /// One whose channels are subscribed to one by one.
    pub(super) fn with(self, heard: Arc<Heard>) -> Self {
        let heard = Some(heard);
        Self { heard, ..self }
    }

    /// One into which nothing comes.
    pub(super) fn of_nobody(&self) -> Self {
        Self::new("".into(), self.manager.clone(), Arc::default())
    }

    /// Takes a message that the server sent by itself. What is no grant is none of ours.
    pub(super) fn take(&self, words: &[Value]) {
        let [_kind, Value::BulkString(channel), rest @ ..] = words else {
            return;
        };
        if let Some(heard) = &self.heard
            && is(words, b"sunsubscribe")
        {
            return heard.end(channel);
        }
        let is_ours =
            channel.starts_with(GRANTS.as_bytes()) && channel.ends_with(self.manager.as_bytes());
        if let (true, [Value::BulkString(message)]) = (is_ours, rest)
            && let Some((number, token)) = read(message)
        {
            match self.counts {
                Counts::AsAGrant => self.grants.deliver(number, FencingToken::new(token)),
                Counts::AsAHint => self.grants.rouse(number),
            }
        }
    }

    /// The connection is gone.
    pub(super) fn unsettle(&self) {
        self.grants.unsettle(CLOCK.now());
    }

    /// There is a new connection, and messages may have been missed.
    pub(super) fn rouse_all(&self) {
        self.grants.rouse_all(CLOCK.now());
    }
}

/// The number of an entry, and its fencing token.
fn read(message: &[u8]) -> Option<(u64, u64)> {
    let (number, token) = std::str::from_utf8(message).ok()?.split_once(' ')?;
    Some((number.parse().ok()?, token.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_numbers_are_a_grant() {
        assert_eq!(
            read(b"7 1795151176455149"),
            Some((7, 1_795_151_176_455_149))
        );
        let odd = [
            &b""[..],
            b"7",
            b"7 ",
            b" 7",
            b"7 -1",
            b"7 1 2",
            b"x 1",
            b"7 99999999999999999999",
            b"\xff 1",
        ];
        for message in odd {
            assert_eq!(read(message), None, "{message:?}");
        }
    }
}
