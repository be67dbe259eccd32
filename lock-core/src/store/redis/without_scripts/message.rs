//! Several commands in one message.

use std::{sync::Arc, time::Duration};

use crate::store::{
    Failure,
    in_flight::{ConnectionId, InFlight},
    redis::{
        connection::{
            reconnecting::ReconnectingConnection,
            wire::resp::{self, Arg, Value},
        },
        scripts::NodeRole,
    },
};

/// Sends commands; one reply each.
pub(super) async fn send(
    connection: &Arc<ReconnectingConnection>,
    commands: &[&[Arg<'_>]],
    within: Duration,
    in_flight: Option<&InFlight>,
) -> Result<(ConnectionId, Vec<Value>), Failure> {
    let write = |out: &mut Vec<u8>| write_all(out, commands);
    connection
        .send_all(commands.len(), write, within, in_flight)
        .await
}

/// The same for a node that has the keys, or to which they are being moved.
pub(super) async fn send_to(
    connection: &Arc<ReconnectingConnection>,
    node_role: NodeRole,
    commands: &[Vec<Arg<'_>>],
    within: Duration,
) -> Result<(ConnectionId, Vec<Value>), Failure> {
    let commands: Vec<&[Arg<'_>]> = commands.iter().map(Vec::as_slice).collect();
    match node_role {
        NodeRole::SlotOwner => send(connection, &commands, within, None).await,
        #[cfg(feature = "cluster")]
        NodeRole::MigrationTarget => {
            // Each ASKING applies to the command after it.
            let commands: Vec<&[Arg<'_>]> = commands
                .into_iter()
                .flat_map(|command| [&[Arg::Text("ASKING")][..], command])
                .collect();
            let (id, answers) = send(connection, &commands, within, None).await?;
            Ok((id, answers.into_iter().skip(1).step_by(2).collect()))
        }
    }
}

/// Sends the end of a transaction, on the connection that watches. On a new connection, it could change the key of the next
/// holder.
pub(super) async fn send_on(
    connection: &Arc<ReconnectingConnection>,
    watching: ConnectionId,
    commands: &[Vec<Arg<'_>>],
    within: Duration,
) -> Result<Vec<Value>, Failure> {
    let commands: Vec<&[Arg<'_>]> = commands.iter().map(Vec::as_slice).collect();
    let write = |out: &mut Vec<u8>| write_all(out, &commands);
    connection
        .send_all_on(watching, commands.len(), write, within)
        .await
}

fn write_all(out: &mut Vec<u8>, commands: &[&[Arg<'_>]]) {
    for words in commands {
        resp::write_command(out, &[words]);
    }
}
