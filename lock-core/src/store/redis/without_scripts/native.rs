//! Changes by commands that compare: `DELEX`, `DELIFEQ`, and `SET … IFEQ`.

use std::{sync::Arc, time::Duration};

use crate::store::{
    Failure,
    in_flight::{ConnectionId, InFlight},
    redis::{
        connection::{capabilities::Compare, reconnecting::ReconnectingConnection},
        scripts::NodeRole,
        without_scripts::{
            change::{Change, Changed, Looked, is_done},
            message::{send, send_to},
        },
    },
};

/// Changes one key.
pub(super) async fn change(
    connection: &Arc<ReconnectingConnection>,
    by: Compare,
    change: &Change<'_>,
    within: Duration,
    in_flight: Option<&InFlight>,
) -> Result<(ConnectionId, bool), Failure> {
    let command = change.comparing(by);
    let (id, answers) = send(connection, &[&command], within, in_flight).await?;
    Ok((id, is_done(answers.into_iter().next())?))
}

/// Has keys last longer. No command compares how long they last, so they are looked at first.
pub(super) async fn prolong(
    connection: &Arc<ReconnectingConnection>,
    by: Compare,
    node_role: NodeRole,
    changes: &[Change<'_>],
    within: Duration,
) -> Result<Vec<Changed>, Failure> {
    let looks: Vec<_> = changes.iter().flat_map(Change::look).collect();
    let (_, answers) = send_to(connection, node_role, &looks, within).await?;
    let looked = Looked::read(changes, answers)?;
    let due = looked.due(changes);
    if due.is_empty() {
        return Ok(looked.done([]));
    }
    let commands: Vec<_> = due.iter().map(|change| change.comparing(by)).collect();
    let (_, answers) = send_to(connection, node_role, &commands, within).await?;
    Ok(looked.done(answers))
}
