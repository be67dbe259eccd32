//! Asking several servers for a lock, and for the tokens of its next holders in this process.

use std::{sync::Arc, time::Duration};

use crate::{
    runtime::jitter::jittered,
    store::{
        Acquire, AcquireOutcome, Acquired, Busy, Expiry, Failure, Prefetch, Prefetched, QueueMode,
        WakeUpMode,
        in_flight::ConnectionId,
        redis::voting_server::{LockCondition, Proposal},
        redlock::{
            ballot::NoMajority,
            servers::{CLOCK, RedlockServers},
            voting_round::run_voting_round,
        },
    },
};

pub(super) async fn acquire(
    servers: Arc<RedlockServers>,
    request: Acquire,
) -> Result<Acquired, Failure> {
    let Acquire {
        full_key,
        in_flight,
        ttl,
        tokens,
        ..
    } = request;
    if request.queue_mode != QueueMode::DoNotQueue
        && servers.back_off.is_due(&full_key, CLOCK.now())
    {
        let pause = jittered(servers.timing.polling_pause).min(ttl / 4);
        CLOCK.sleep_until(CLOCK.now().after(pause)).await;
    }
    let proposal = Proposal {
        full_key: full_key.clone(),
        token: request.token,
        ttl,
        number: 0,
        count: tokens,
        lock: LockCondition::FreeOrOurs,
        asker: servers.name.clone(),
        mark: servers.mark(request.queue_mode),
    };
    let outcome = run_voting_round(
        &servers,
        proposal,
        request.known_fencing,
        Some(in_flight.clone()),
    )
    .await;
    let lost = match outcome {
        Ok(won) => {
            in_flight.note_sent_on(ConnectionId::ALL);
            return Ok(Acquired {
                outcome: AcquireOutcome::Granted(won.tokens.into()),
                connection: ConnectionId::SOME,
            });
        }
        Err(lost) => lost,
    };
    if lost.leaves_traces {
        in_flight.note_sent_on(ConnectionId::ALL);
    }
    match lost.loss {
        NoMajority::Busy(expiry) => Ok(Acquired {
            outcome: AcquireOutcome::Busy(busy(expiry)),
            connection: lost.connection(),
        }),
        NoMajority::Silence | NoMajority::Overtaken => Err(lost.failure(&servers)),
    }
}

/// There is no queue: each waiter asks again, with a new owner token.
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

pub(super) async fn prefetch(
    servers: Arc<RedlockServers>,
    request: Prefetch,
) -> Result<Prefetched, Failure> {
    let proposal = Proposal {
        full_key: request.full_key,
        token: request.token,
        ttl: request.ttl,
        number: 0,
        count: request.tokens,
        lock: LockCondition::Ours,
        asker: servers.name.clone(),
        mark: Duration::ZERO,
    };
    match run_voting_round(&servers, proposal, request.known_fencing, None).await {
        Ok(won) => Ok(Prefetched::Tokens {
            tokens: won.tokens,
            contended: won.contended,
        }),
        Err(lost) if lost.is_definitely_not_ours => Ok(Prefetched::NotOurs),
        Err(lost) => Err(lost.failure(&servers)),
    }
}
