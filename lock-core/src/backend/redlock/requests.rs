//! Acquiring, renewing and releasing locks on several servers.
//!
//! After a majority has renewed a key, it is set again at a server that lost it. Otherwise a lease that is held for long would lose
//! its servers one by one as they restart.
//!
//! A key can be on less than a majority although most servers are up: one of its servers restarted without its data, and the others
//! never had the key, since they were down when the lock was taken. So a renewal sets the key at the servers without it before it
//! reports a loss, if [no other client can have had a majority](excludes_others) since the last renewal. Where another client has the
//! lock by now, the key is not set, and that server does not count.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::sync::{mpsc, oneshot};

use crate::{
    backend::{
        Acquire, Answered, Backend, Release, Renew,
        in_flight::Order,
        on_executor::ENDED,
        redis::protocol::voting_server::{LockCondition, Proposal},
        redlock::{
            at_servers::AtServers,
            ballot::{
                NoMajority,
                quorum::{Replies, excludes_others, majority},
            },
            redlock_server::CLOCK,
            redlock_servers::RedlockServers,
            voting_round::run_voting_round,
        },
    },
    engine::reply::{
        AcquireOutcome, Busy, Contended, QueueMode, ReleaseOutcome, Renewed, WakeUpMode,
    },
    failure::Failure,
    fencing::FencingBlock,
    moment::Moment,
    runtime::{executor::spawn_beside, jitter::jittered, together::together},
};

pub(super) async fn acquire(
    servers: Arc<RedlockServers>,
    request: Acquire,
) -> Result<Answered<AcquireOutcome>, Failure> {
    let (owner, ttl) = (request.owner, request.ttl);
    let waits = request.queue_mode != QueueMode::DoNotQueue;
    if waits && let Some(until) = servers.back_off.end(&owner.full_key) {
        CLOCK
            .sleep_until(until.min(CLOCK.now().after(ttl / 4)))
            .await;
    }
    // For the caller, all servers are one order. What is in flight to each of them is in the record of that server.
    owner.in_flight.note_sent_on(Order::LOCAL);
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
            // Each waiter tries again, with a new owner token. The caller releases this one: a minority may have accepted it.
            NoMajority::Busy(expiry) => {
                let wake_up = WakeUpMode::PollWithNewToken;
                AcquireOutcome::Busy(Busy::without_queue(expiry, wake_up))
            }
            NoMajority::Silence | NoMajority::Overtaken => return Err(lost.failure(&servers)),
        },
    };
    Ok(Answered {
        outcome,
        // Requests to a minority may be in flight.
        order: None,
    })
}

/// Makes one try of a release at all servers that may have the lock. The first outcome is that of a majority, so that no caller waits
/// for a server that is away. A try after that ends with the last reply.
pub(super) async fn release(
    servers: Arc<RedlockServers>,
    request: Release,
) -> Result<Answered<ReleaseOutcome>, Failure> {
    let count = servers.servers.len();
    let lock = AtServers::of(&request.owner, count);
    let mut incoming = servers.request_all(|position, server| {
        let (at, request) = (lock.each[position].clone(), request.clone());
        async move { at.release(&server.node, request).await }
    });
    let had_outcome = lock.is_released.load(Ordering::Acquire);
    let mut replies = Replies::of(count);
    while let Some((_, reply)) = incoming.recv().await {
        replies.count(reply);
        if !had_outcome && replies.result().is_some() {
            break;
        }
    }
    let none = || Err(Failure::no_reply(ENDED));
    let outcome = replies.result().unwrap_or_else(none)?;
    if !lock.is_released.swap(true, Ordering::AcqRel) && lock.is_wanted.load(Ordering::Acquire) {
        let (now, pause) = (CLOCK.now(), jittered(servers.timing.polling_pause));
        let full_key = &request.owner.full_key;
        servers.back_off.begin(full_key, now.after(pause), now);
    }
    Ok(Answered {
        outcome,
        order: lock.order(),
    })
}

/// Renews leases. In a task of its own: replies after the majority's decision are used, too.
pub(super) async fn renew(
    servers: Arc<RedlockServers>,
    batch: Vec<Renew>,
    within: Duration,
) -> Result<Vec<Result<Renewed, Failure>>, Failure> {
    let (sender, receiver) = oneshot::channel();
    spawn_beside(renew_and_restore(servers, batch, within, sender));
    let none = |_| Failure::no_reply("the renewal ended without a reply");
    receiver.await.map_err(none)
}

/// Reports the results as soon as a majority has renewed each lease; then restores the keys at servers that have lost them. If some
/// lease has no majority, restores first, and reports then.
async fn renew_and_restore(
    servers: Arc<RedlockServers>,
    batch: Vec<Renew>,
    within: Duration,
    sender: oneshot::Sender<Vec<Result<Renewed, Failure>>>,
) {
    let count = servers.servers.len();
    let mut incoming = servers.request_all(|_, server| {
        let batch = batch.clone();
        async move { server.node.renew(batch, within).await }
    });
    let mut leases = vec![Replies::of(count); batch.len()];
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
            && let Some(results) = leases.iter().map(renewed_by_majority).collect()
            && let Some(sender) = sender.take()
        {
            // The receiver is gone if the manager ended.
            drop(sender.send(results));
        }
    }
    let mut forgetful = vec![0; batch.len()];
    if sender.is_some() {
        let lost_data = when_they_lost_data(&servers, &missing, &batch).await;
        for (server, index) in &missing {
            let lately = |at| CLOCK.now().since(at) < batch[*index].ttl;
            forgetful[*index] += usize::from(lost_data[*server].is_some_and(lately));
        }
    }
    missing.retain(|(_, index)| {
        let confirmed = leases[*index].count_of(is_extended);
        excludes_others(count, confirmed, forgetful[*index])
    });
    let restored = restore_keys(&servers, &batch, missing).await;
    if let Some(sender) = sender {
        let result = |(lease, restored): (&Replies<Renewed>, usize)| {
            if lease.count_of(is_extended) + restored >= majority(count) {
                return Ok(Renewed::Extended {
                    tokens: FencingBlock::EMPTY,
                    contended: Contended::NoneWaiting,
                });
            }
            let none = || Err(Failure::no_reply(ENDED));
            lease.result().unwrap_or_else(none)
        };
        drop(sender.send(leases.iter().zip(restored).map(result).collect()));
    }
}

fn is_extended(renewed: &Renewed) -> bool {
    matches!(renewed, Renewed::Extended { .. })
}

fn renewed_by_majority(lease: &Replies<Renewed>) -> Option<Result<Renewed, Failure>> {
    lease
        .result()
        .filter(|result| result.as_ref().is_ok_and(is_extended))
}

/// Since when the servers without a key are known to have lost their data; see [`RedlockServer::lost_data`].
async fn when_they_lost_data(
    servers: &RedlockServers,
    missing: &[(usize, usize)],
    batch: &[Renew],
) -> Vec<Option<Moment>> {
    let longest = batch.iter().map(|request| request.ttl).max();
    let within = servers.patience(longest.unwrap_or_default());
    let asked = servers.servers.iter().enumerate();
    let asked = asked.map(|(position, server)| async move {
        let is_without = missing.iter().any(|(server, _)| *server == position);
        if is_without {
            server.lost_data(within).await
        } else {
            None
        }
    });
    together(asked).await
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
        // Without new tokens, the lease may still be renewed: where the key is missing, it is restored.
        Err(lost) if lost.is_definitely_not_ours => {
            let plain = Renew {
                tokens: 0,
                ..request.clone()
            };
            let within = servers.patience(request.ttl);
            let renewed = renew(servers.clone(), vec![plain], within).await?;
            let none = || Err(Failure::no_reply(ENDED));
            renewed.into_iter().next().unwrap_or_else(none)
        }
        Err(lost) => Err(lost.failure(servers)),
    }
}

/// Restores keys at servers, given by their positions and those of the requests. Returns for each request how many servers have it
/// again.
async fn restore_keys(
    servers: &Arc<RedlockServers>,
    batch: &[Renew],
    missing: Vec<(usize, usize)>,
) -> Vec<usize> {
    let (sender, mut incoming) = mpsc::unbounded_channel();
    for (server, index) in missing {
        let (servers, request, sender) = (servers.clone(), batch[index].clone(), sender.clone());
        spawn_beside(async move {
            let is_set = restore_key(&servers, server, &request).await;
            sender.send((index, is_set)).ok();
        });
    }
    drop(sender);
    let mut restored = vec![0; batch.len()];
    while let Some((index, is_set)) = incoming.recv().await {
        restored[index] += usize::from(is_set);
    }
    restored
}

/// Restores a key at a server that lost it, or was not reached before. No other client can have the lock by a majority. The server
/// counts for the lease from then on. Returns whether the key was set.
async fn restore_key(servers: &RedlockServers, server: usize, request: &Renew) -> bool {
    let lock = AtServers::of(&request.owner, servers.servers.len());
    // Not after its release has begun: the restored key would never be released.
    let Ok(mut known) = lock.each[server].turn().await else {
        return false;
    };
    let node = &servers.servers[server].node;
    let within = servers.patience(request.ttl);
    let restored = node.restore_key(request, within, known.in_flight());
    match restored.await {
        Ok((connection, is_set)) => {
            known.note_answer(connection, true);
            is_set
        }
        Err(failure) => {
            tracing::debug!(server = node.shown(), ?failure, "a key was not made anew");
            false
        }
    }
}
