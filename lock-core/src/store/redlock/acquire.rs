//! Asking several servers for a lock.

use std::{sync::Arc, time::Duration};

use crate::{
    runtime::jitter::jittered,
    store::{
        Acquire, AcquireOutcome, Acquired, Busy, Failure, QueueMode, WakeUpMode,
        in_flight::ConnectionId,
        redis::voting_server::{LockCondition, Proposal},
        redlock::{
            ballot::NoMajority,
            redlock_server::CLOCK,
            redlock_servers::RedlockServers,
            voting_round::{RoundLost, run_voting_round},
        },
    },
};

/// A waiter that polls again within this many of its pauses is remembered by the servers in between.
const MARK_PAUSES: u32 = 4;

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
        number: 0,
        count: request.tokens,
        lock: LockCondition::FreeOrOurs,
        mark: if waits {
            servers.timing.polling_pause * MARK_PAUSES
        } else {
            Duration::ZERO
        },
    };
    let round = run_voting_round(&servers, proposal, request.known_fencing);
    let outcome = match round.await {
        Ok((tokens, _)) => AcquireOutcome::Granted(tokens.into()),
        Err(RoundLost {
            loss: NoMajority::Busy(expiry),
            ..
        }) => {
            // Each waiter asks again, with a new owner token. The caller releases this one: a minority may have accepted it.
            let wake_up = WakeUpMode::PollWithNewToken;
            AcquireOutcome::Busy(Busy::without_queue(expiry, wake_up))
        }
        Err(lost) => return Err(lost.failure(&servers)),
    };
    Ok(Acquired {
        outcome,
        connection: ConnectionId::LOCAL,
    })
}
