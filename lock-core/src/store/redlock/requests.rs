//! Acquiring, renewing and releasing locks on several servers.
//!
//! After a majority has renewed a key, it is set again at a server that lost it. Otherwise a lease that is held for long would lose
//! its servers one by one as they restart.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use crate::{
    runtime::jitter::jittered,
    store::{
        Acquire, AcquireOutcome, Acquired, Busy, CertainRelease, ENDED, Failure, QueueMode,
        Release, ReleaseOutcome, Renew, Renewed, Store, WakeUpMode,
        in_flight::ConnectionId,
        redis::voting_server::{LockCondition, Proposal},
        redlock::{
            ballot::{NoMajority, quorum::Replies},
            redlock_server::CLOCK,
            redlock_servers::RedlockServers,
            voting_round::run_voting_round,
        },
    },
};

pub(super) async fn acquire(
    servers: Arc<RedlockServers>,
    request: Acquire,
) -> Result<Acquired, Failure> {
    let (owner, ttl) = (request.owner, request.ttl);
    let waits = request.queue_mode != QueueMode::DoNotQueue;
    if waits && servers.back_off.is_due(&owner.full_key, CLOCK.now()) {
        let pause = jittered(servers.timing.polling_pause).min(ttl / 4);
        CLOCK.sleep_until(CLOCK.now().after(pause)).await;
    }
    // For the caller, all servers count as one connection. What is in flight to each of them is in the record of that server.
    owner.in_flight.note_sent_on(ConnectionId::LOCAL);
    let proposal = Proposal {
        owner,
        ttl,
        count: request.tokens,
        lock: LockCondition::FreeOrOurs,
        mark: if waits {
            servers.timing.mark()
        } else {
            Duration::ZERO
        },
    };
    let round = run_voting_round(&servers, proposal, request.known_fencing);
    let outcome = match round.await {
        Ok((tokens, _)) => AcquireOutcome::Granted(tokens.into()),
        Err(lost) => match lost.loss {
            // Each waiter asks again, with a new owner token. The caller releases this one: a minority may have accepted it.
            NoMajority::Busy(expiry) => {
                let wake_up = WakeUpMode::PollWithNewToken;
                AcquireOutcome::Busy(Busy::without_queue(expiry, wake_up))
            }
            NoMajority::Silence | NoMajority::Overtaken => return Err(lost.failure(&servers)),
        },
    };
    Ok(Acquired {
        outcome,
        connection: ConnectionId::LOCAL,
    })
}

/// Releases at all servers that may have the lock, and returns as soon as a majority has replied. Each server has a release of its
/// own, which goes on until it is certain there.
pub(super) async fn release(
    servers: Arc<RedlockServers>,
    release: CertainRelease,
) -> Result<ReleaseOutcome, Failure> {
    let count = servers.servers.len();
    let owner = release.request.owner.clone();
    let records = owner.servers(count);
    let mut incoming = servers.ask_all(|position, server| {
        let record = records[position].clone();
        let release = CertainRelease {
            request: Release {
                at_server: Some(record.clone()),
                ..release.request.clone()
            },
            ..release.clone()
        };
        async move {
            if record.close().await {
                server.node.release(release).await
            } else {
                Ok(ReleaseOutcome::NotOurs)
            }
        }
    });
    let mut replies = Replies::of(count);
    while let Some((_, reply)) = incoming.recv().await {
        replies.count(reply);
        if let Some(result) = replies.result() {
            return result;
        }
    }
    Err(Failure::no_reply(ENDED))
}

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
