//! The choice of commands by which locks are kept on a server.

use redis::Cmd;

use crate::backend::redis::transport::command::{
    Arg::{self, Text},
    command,
};

/// The commands by which locks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capabilities {
    /// Scripts: everything works.
    Scripts,
    /// Commands alone: waiters poll.
    Commands,
}

/// The single command by which a server deletes a key that holds a value.
///
/// Rejected: to try the right beforehand, which costs each connection a message. A user without the right leaves one line a
/// connection in the server's `ACL LOG` instead. `SET … IFEQ` is not used. In Redis 8.6.2 it loses another key, of any client,
/// while the table of keys shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeleteIf {
    /// Redis 8.4 and later.
    Delex,
    /// Valkey 9 and later.
    Delifeq,
}

impl DeleteIf {
    pub(crate) fn command(self, key: Arg<'_>, holds: Arg<'_>) -> Cmd {
        match self {
            Self::Delex => command(&[&[Text("DELEX"), key, Text("IFEQ"), holds]]),
            Self::Delifeq => command(&[&[Text("DELIFEQ"), key, holds]]),
        }
    }
}
