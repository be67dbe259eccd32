//! Where the server tells a manager that one of its entries was granted.

use std::sync::Arc;

use crate::{backend::redis::resp::Value, grants::Grants, token::FencingToken};

/// The channel of a manager, and who wants to know of its messages.
#[derive(Clone, Debug)]
pub(super) struct Mailbox {
    pub(super) channel: Arc<str>,
    grants: Arc<Grants>,
}

impl Mailbox {
    pub(super) fn new(channel: String, grants: Arc<Grants>) -> Self {
        Self {
            channel: channel.into(),
            grants,
        }
    }

    /// Takes a message that the server sent by itself. What is no grant is none of ours.
    pub(super) fn take(&self, words: &[Value]) {
        if let [
            _kind,
            Value::BulkString(channel),
            Value::BulkString(message),
        ] = words
            && **channel == *self.channel.as_bytes()
            && let Some((number, token)) = read(message)
        {
            self.grants.deliver(number, FencingToken::new(token));
        }
    }

    /// Messages may have been missed.
    pub(super) fn rouse_all(&self) {
        self.grants.rouse_all();
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
