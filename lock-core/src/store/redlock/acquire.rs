//! Asking several servers for a lock.

use std::sync::Arc;

use crate::{
    runtime::jitter::jittered,
    store::{
        Acquire, AcquireOutcome, Acquired, Busy, Expiry, Failure, QueueMode, WakeUpMode,
        in_flight::ConnectionId,
        redis::voting_server::{LockCondition, Proposal},
        redlock::{
            ballot::NoMajority,
            redlock_servers::{CLOCK, RedlockServers},
            voting_round::{RoundLost, run_voting_round},
        },
    },
};

pub(super) async fn acquire(
    servers: Arc<RedlockServers>,
    request: Acquire,
) -> Result<Acquired, Failure> {
    let Acquire {
        owner, ttl, tokens, ..
    } = request;
    if request.queue_mode != QueueMode::DoNotQueue
        && servers.back_off.is_due(&owner.full_key, CLOCK.now())
    {
        let pause = jittered(servers.timing.polling_pause).min(ttl / 4);
        CLOCK.sleep_until(CLOCK.now().after(pause)).await;
    }
    let proposal = Proposal {
        full_key: owner.full_key.clone(),
        token: owner.token.clone(),
        ttl,
        number: 0,
        count: tokens,
        lock: LockCondition::FreeOrOurs,
        asker: servers.name.clone(),
        mark: servers.mark(request.queue_mode),
    };
    // For the caller, all servers count as one connection. What is in flight to each of them is in the record of that server.
    owner.in_flight.note_sent_on(ConnectionId::LOCAL);
    let round = run_voting_round(&servers, proposal, request.known_fencing, Some(&owner));
    let outcome = match round.await {
        Ok((tokens, _)) => AcquireOutcome::Granted(tokens.into()),
        Err(RoundLost {
            loss: NoMajority::Busy(expiry),
            ..
        }) => AcquireOutcome::Busy(busy(expiry)),
        Err(lost) => return Err(lost.failure(&servers)),
    };
    Ok(Acquired {
        outcome,
        connection: ConnectionId::LOCAL,
    })
}

/// There is no queue: each waiter asks again, with a new owner token. The caller releases this one: a minority may have accepted it.
fn busy(expiry: Expiry) -> Busy {
    Busy {
        expiry,
        position: None,
        wake_up: WakeUpMode::PollWithNewToken,
        is_next: true,
        holder: None,
        stamp: None,
    }
}
