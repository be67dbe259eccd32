//! Several commands in one message.

use std::{sync::Arc, time::Duration};

use redis::Value;

use crate::store::{
    Failure,
    in_flight::{ConnectionId, InFlight},
    redis::{
        connection::{
            reconnecting::ReconnectingConnection,
            wire::command::{Arg, Outgoing, command, pipeline},
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
    connection.send_all(all(commands), within, in_flight).await
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
    connection
        .send_all_on(watching, all(&commands), within)
        .await
}

fn all(commands: &[&[Arg<'_>]]) -> Outgoing {
    pipeline(commands.iter().map(|words| command(&[words])))
}
