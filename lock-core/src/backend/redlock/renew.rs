//! Renewing leases on several servers.
//!
//! After a majority has renewed a key, the key is restored on servers that lost it. Otherwise, a lease that is held for long
//! would lose its servers one by one as they restart.
//!
//! A key can be on less than a majority although most servers are up: one of its servers restarted without its data, and the
//! others never had the key, since they were down when the lock was taken. So before a renewal reports a loss, it restores the key
//! on the servers without it, if [no other client can have had a majority](excludes_others) since the last renewal. If
//! another client now holds the lock on a server, the key is not restored there, and that server does not count.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::sync::{mpsc, oneshot};

use crate::{
    backend::{
        Backend, Renew,
        on_executor::ENDED,
        redlock::{
            RedlockServers,
            at_servers::AtServers,
            ballot::quorum::{Replies, excludes_others},
            restart_quarantine::CLOCK,
            spawn_each,
        },
    },
    engine::reply::{Contended, Renewed},
    failure::Failure,
    fencing::FencingBlock,
    runtime::{executor::spawn_detached, together::together},
};

/// The results of a batch, one for each lease.
type Results = Vec<Result<Renewed, Failure>>;

/// Renews leases in a separate task, because replies that arrive after the majority's decision are used, too.
pub(super) async fn renew(
    servers: Arc<RedlockServers>,
    batch: Vec<Renew>,
    within: Duration,
) -> Result<Results, Failure> {
    let (sender, receiver) = oneshot::channel();
    spawn_detached(renew_and_restore(servers, batch, within, sender));
    receiver.await.map_err(|_| Failure::no_reply(ENDED))
}

/// Reports the results as soon as a majority has renewed each lease, and then restores the keys on servers that have lost them.
/// If a lease has no majority, the keys are restored before the results are reported.
async fn renew_and_restore(
    servers: Arc<RedlockServers>,
    batch: Vec<Renew>,
    within: Duration,
    sender: oneshot::Sender<Results>,
) {
    let mut incoming = servers.request_all(|_, server| {
        let batch = batch.clone();
        async move { server.node.renew(batch, within).await }
    });
    // `true` for each lease that is ours.
    let mut leases = vec![Replies::<bool>::of(servers.count()); batch.len()];
    let mut sender = Some(sender);
    while let Some((server, reply)) = incoming.recv().await {
        let reply = reply.unwrap_or_else(|failure| vec![Err(failure); batch.len()]);
        for (lease, renewed) in leases.iter_mut().zip(reply) {
            lease.note(server, renewed.map(|renewed| renewed != Renewed::NotOurs));
        }
        let is_ours = |lease: &Replies<bool>| matches!(lease.outcome(), Some(Ok(true)));
        if leases.iter().all(is_ours)
            && let Some(sender) = sender.take()
        {
            // The receiver is gone if the manager ended.
            drop(sender.send(results(&leases)));
        }
    }
    // Leases that were reported have a majority, which excludes others by itself.
    let mut lost_data = vec![None; servers.count()];
    if sender.is_some() {
        let longest = batch.iter().map(|request| request.ttl).max();
        let within = servers.patience(longest.unwrap_or_default());
        let at: BTreeSet<_> = leases.iter().flat_map(|lease| lease.who(&false)).collect();
        let asked = at.iter().map(|at| servers.servers[*at].lost_data(within));
        for (at, lost) in at.iter().zip(together(asked).await) {
            lost_data[*at] = lost;
        }
    }
    let (set, mut restored) = mpsc::unbounded_channel();
    for (index, (lease, request)) in leases.iter().zip(&batch).enumerate() {
        let lost_lately =
            |at: &usize| lost_data[*at].is_some_and(|lost| CLOCK.now().since(lost) < request.ttl);
        let forgetful = lease.who(&false).filter(lost_lately).count();
        if excludes_others(servers.count(), lease.who(&true).count(), forgetful) {
            let each = lease.who(&false).map(|server| {
                let (servers, request) = (servers.clone(), request.clone());
                async move { (index, server, restore_key(&servers, server, &request).await) }
            });
            spawn_each(&set, each);
        }
    }
    drop(set);
    while let Some((index, server, is_set)) = restored.recv().await {
        leases[index].note(server, is_set);
    }
    if let Some(sender) = sender {
        drop(sender.send(results(&leases)));
    }
}

fn results(leases: &[Replies<bool>]) -> Results {
    let (tokens, contended) = (FencingBlock::EMPTY, Contended::NoneWaiting);
    let renewed = |is_ours| {
        if is_ours {
            Renewed::Extended { tokens, contended }
        } else {
            Renewed::NotOurs
        }
    };
    (leases.iter().map(|lease| lease.result().map(renewed))).collect()
}

/// Restores a key on a server that lost it, or was not reached before. No other client can have the lock by a majority. From
/// then on, the server counts for the lease. Returns whether the key was set.
///
/// # Cancel safety
///
/// The request runs in a separate task, and is recorded, so the key may be there. A release waits for its turn, and finds the
/// record.
async fn restore_key(
    servers: &RedlockServers,
    server: usize,
    request: &Renew,
) -> Result<bool, Failure> {
    let lock = AtServers::of(&request.owner, servers.count());
    // Fails once the release has begun, because a key restored after that would never be released.
    let mut known = lock.each[server].turn().await?;
    let (node, within) = (&servers.servers[server].node, servers.patience(request.ttl));
    let restored = node.restore_key(request, within, known.in_flight());
    let (connection, is_set) = restored.await?;
    known.note_answer(connection, true);
    Ok(is_set)
}
