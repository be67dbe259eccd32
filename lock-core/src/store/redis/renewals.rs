//! Renewing many leases at once: one message to each server that has some of them.

use std::time::Duration;

#[cfg(feature = "cluster")]
use crate::store::redis::cluster_renewals;
use crate::store::{
    Failure, Renew, Renewed,
    redis::{
        connection::{
            capabilities::Capabilities,
            wire::command::{
                Arg::{Number, Text},
                millis,
            },
        },
        scripts::{Call, RENEW, replies::read_renewed},
        topology::{key_location::KeyLocation, servers::RedisServers},
    },
};

pub(super) type Renewals = Vec<Result<Renewed, Failure>>;

pub(super) async fn renew(
    servers: &RedisServers,
    batch: Vec<Renew>,
    within: Duration,
) -> Result<Renewals, Failure> {
    match servers {
        RedisServers::One(..) => {
            let Some(first) = batch.first() else {
                return Ok(Vec::new());
            };
            let location = servers.location(&first.full_key);
            renew_at(&location, &batch, within).await
        }
        #[cfg(feature = "cluster")]
        RedisServers::Several(_) => Ok(cluster_renewals::renew(servers, &batch, within).await),
    }
}

pub(super) async fn renew_at(
    location: &KeyLocation,
    batch: &[Renew],
    within: Duration,
) -> Result<Renewals, Failure> {
    if let Capabilities::Commands(by) = location.capabilities(within).await? {
        let commands = &location.server.commands;
        return commands.renew(by, location.node_role, batch, within).await;
    }
    let words: Vec<_> = batch
        .iter()
        .map(|request| {
            (
                [Text(&request.full_key)],
                [Text(request.token.expose()), Number(millis(request.ttl))],
            )
        })
        .collect();
    let calls: Vec<_> = words
        .iter()
        .map(|(keys, arguments)| Call { keys, arguments })
        .collect();
    let (connection, role) = (&location.server.connection, location.node_role);
    let (_, answers) = RENEW.ask(connection, role, &calls, within, None).await?;
    Ok(answers.iter().map(read_renewed).collect())
}
