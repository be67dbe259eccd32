//! The single command by which a server deletes a key that holds a value.
//!
//! Rejected: to try the right beforehand, which costs each connection a message. A user without the right leaves one line a
//! connection in the server's `ACL LOG` instead. `SET … IFEQ` is not used. In Redis 8.6.2 it loses another key, of any client,
//! while the table of keys shrinks.

use std::sync::atomic::{AtomicU8, Ordering};

use redis::{Cmd, ServerError};

use crate::store::redis::connection::{
    errors,
    wire::command::{
        Arg::{self, Text},
        command,
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeleteIf {
    /// Redis 8.4 and later.
    Delex,
    /// Valkey 9 and later.
    Delifeq,
}

impl DeleteIf {
    pub(crate) fn command(self, key: Arg<'_>, holds: &str) -> Cmd {
        match self {
            Self::Delex => command(&[&[Text("DELEX"), key, Text("IFEQ"), Text(holds)]]),
            Self::Delifeq => command(&[&[Text("DELIFEQ"), key, Text(holds)]]),
        }
    }
}

/// The command of the current connection to a server, if there is one that the user may use.
///
/// The version that the server reports says which command it is. The first use shows whether the user has the right to it. That
/// takes no message, and a refusal is definite. A refusal that comes late, from an earlier connection, costs the new one its
/// command, and nothing else.
#[derive(Debug, Default)]
pub(crate) struct DeleteIfCell(AtomicU8);

impl DeleteIfCell {
    pub(super) fn set(&self, delete_if: Option<DeleteIf>) {
        let number = match delete_if {
            None => 0,
            Some(DeleteIf::Delex) => 1,
            Some(DeleteIf::Delifeq) => 2,
        };
        self.0.store(number, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Option<DeleteIf> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(DeleteIf::Delex),
            _ => Some(DeleteIf::Delifeq),
        }
    }

    /// Takes an error reply to the command into account.
    pub(crate) fn note(&self, error: &ServerError) {
        if error.code() == "NOPERM" || errors::details_of(error).contains("unknown command") {
            self.set(None);
        }
    }
}
