//! The choice of commands by which locks are kept on a server.

use redis::Value;

use crate::store::{
    Failure,
    redis::{
        address::Address,
        connection::{
            errors,
            wire::command::Arg::{self, Number, Text},
        },
    },
};

/// The commands by which locks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capabilities {
    /// Scripts: everything works.
    Scripts,
    /// Commands alone: waiters poll.
    Commands,
}

impl Capabilities {
    /// Asks whether this user may run scripts. Each connection asks once, since the next one may lead to another server.
    pub(super) const QUESTION: [Arg<'static>; 3] = [Text("EVAL"), Text("return 1"), Number(0)];

    pub(super) fn of_reply(reply: &Value, address: &Address) -> Result<Self, Failure> {
        match reply {
            Value::ServerError(error) => match error.code() {
                "NOPERM" => Ok(Self::Commands),
                _ if errors::details_of(error).contains("unknown command") => Ok(Self::Commands),
                _ => Err(errors::refused(error, address)),
            },
            // No known server sends another reply. The first lock then shows whether scripts work.
            _ => Ok(Self::Scripts),
        }
    }
}
