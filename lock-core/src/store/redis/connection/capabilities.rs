//! The choice of commands by which locks are kept on a server.

use redis::Value;

use crate::store::{
    Failure,
    redis::connection::{
        errors,
        handshake::CurrentConnection,
        wire::command::Arg::{Number, Text},
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

/// Asks whether this user may run scripts here. Each connection asks once, since the next one may lead to another server.
pub(super) async fn capabilities(current: &CurrentConnection) -> Result<Capabilities, Failure> {
    let nothing = [Text("EVAL"), Text("return 1"), Number(0)];
    match current.ask(&nothing).await? {
        Value::ServerError(error) => match error.code() {
            "NOPERM" => Ok(Capabilities::Commands),
            _ if errors::details_of(&error).contains("unknown command") => {
                Ok(Capabilities::Commands)
            }
            _ => Err(errors::refused(&error, &current.address)),
        },
        // No known server sends another reply. The first lock then shows whether scripts work.
        _ => Ok(Capabilities::Scripts),
    }
}
