//! Renewing leases on several servers, also with tokens for the next holders in this process.
//!
//! After a majority has renewed a key, it is set again at a server that lost it. Otherwise a lease that is held for long would lose
//! its servers one by one as they restart.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use crate::store::{
    Failure, Renew, Renewed, Store,
    redis::voting_server::{LockCondition, Proposal},
    redlock::{
        ballot::quorum::Replies, redlock_servers::RedlockServers, voting_round::run_voting_round,
    },
};

/// Reports the majorities' results as soon as there is one for each lease; then restores the keys at servers that have lost them.
pub(super) async fn renew(
    servers: Arc<RedlockServers>,
    batch: Vec<Renew>,
    within: Duration,
    sender: oneshot::Sender<Vec<Result<Renewed, Failure>>>,
) {
    let mut incoming = servers.ask_all(|_, server| {
        let batch = batch.clone();
        async move { server.node.renew(batch, within).await }
    });
    let mut leases = vec![Replies::of(servers.servers.len()); batch.len()];
    let mut missing = Vec::new();
    let mut sender = Some(sender);
    while let Some((server, reply)) = incoming.recv().await {
        let reply = reply.unwrap_or_else(|failure| vec![Err(failure); batch.len()]);
        for (index, (lease, renewed)) in leases.iter_mut().zip(reply).enumerate() {
            if matches!(renewed, Ok(Renewed::NotOurs)) {
                missing.push((server, index));
            }
            lease.count(renewed);
        }
        if sender.is_some()
            && let Some(results) = leases.iter().map(Replies::result).collect()
            && let Some(sender) = sender.take()
        {
            // The receiver is gone if the manager ended.
            drop(sender.send(results));
        }
    }
    for (server, index) in missing {
        if let Some(Ok(Renewed::Extended { .. })) = leases[index].result() {
            restore_key(&servers, server, &batch[index]).await;
        }
    }
}

/// Renews a lease by a vote, which also decides on its fencing tokens.
pub(super) async fn renew_with_tokens(
    servers: &Arc<RedlockServers>,
    request: &Renew,
) -> Result<Renewed, Failure> {
    let proposal = Proposal {
        owner: request.owner.clone(),
        ttl: request.ttl,
        number: 0,
        count: request.tokens,
        lock: LockCondition::Ours,
        mark: Duration::ZERO,
    };
    match run_voting_round(servers, proposal, request.known_fencing).await {
        Ok((tokens, contended)) => Ok(Renewed::Extended { tokens, contended }),
        Err(lost) if lost.is_definitely_not_ours => Ok(Renewed::NotOurs),
        Err(lost) => Err(lost.failure(servers)),
    }
}

/// Restores a key at a server that lost it, or was not reached before. A majority has just renewed the lease, so no other client
/// can have the lock. The server counts for it from the next renewal on.
async fn restore_key(servers: &RedlockServers, server: usize, request: &Renew) {
    let records = (request.owner).servers(servers.servers.len());
    let under_way = records[server].begin();
    // Not after its release has begun: the restored key would never be released.
    if !under_way.may_leave() {
        return;
    }
    let node = &servers.servers[server].node;
    let within = servers.patience(request.ttl);
    let restored = node.restore_key(request, within, &under_way.in_flight);
    match restored.await {
        Ok(connection) => under_way.answered(connection, true),
        Err(failure) => {
            tracing::debug!(server = node.shown(), ?failure, "a key was not made anew");
        }
    }
}
