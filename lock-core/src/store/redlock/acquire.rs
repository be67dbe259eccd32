//! Asking several servers for a lock, and for the tokens of its next holders in this process.

use std::{sync::Arc, time::Duration};

use crate::{
    fencing::FencingBlock,
    runtime::jitter::jittered,
    store::{
        Acquire, AcquireOutcome, Acquired, Busy, Contended, Failure, Prefetch, Prefetched,
        QueueMode, WakeUpMode,
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
    servers: &Arc<RedlockServers>,
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
        servers,
        proposal,
        request.known_fencing,
        Some(in_flight.clone()),
    )
    .await;
    let lost = match outcome {
        Ok(won) => {
            if won.wanted {
                servers.back_off.note(&full_key, CLOCK.now());
            }
            in_flight.note_sent_on(ConnectionId::ALL);
            return Ok(Acquired {
                outcome: AcquireOutcome::Granted(block(won.number, tokens)),
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
            outcome: AcquireOutcome::Busy(Busy {
                expiry,
                position: None,
                wake_up: WakeUpMode::PollWithNewToken,
                counter: None,
            }),
            connection: lost.connection(),
        }),
        NoMajority::Silence | NoMajority::Overtaken => Err(lost.failure(servers.servers.len())),
    }
}

/// The fencing tokens that a number stands for, of which it is the last.
fn block(number: u64, count: u32) -> FencingBlock {
    FencingBlock::new(number + 1 - u64::from(count), count)
}

/// The block is proposed as the first token is, so that the counters of a majority are past all of it before any of it is used.
pub(super) async fn prefetch(
    servers: &Arc<RedlockServers>,
    request: Prefetch,
) -> Result<Prefetched, Failure> {
    let count = request.tokens;
    let proposal = Proposal {
        full_key: request.full_key.clone(),
        token: request.token,
        ttl: request.ttl,
        number: 0,
        count,
        lock: LockCondition::Ours,
        asker: servers.name.clone(),
        mark: Duration::ZERO,
    };
    match run_voting_round(servers, proposal, request.known_fencing, None).await {
        Ok(won) => {
            if won.wanted {
                servers.back_off.note(&request.full_key, CLOCK.now());
            }
            Ok(Prefetched::Tokens {
                tokens: block(won.number, count),
                contended: if won.wanted {
                    Contended::OthersWaiting
                } else {
                    Contended::NoneWaiting
                },
            })
        }
        Err(lost) if lost.is_definitely_not_ours => Ok(Prefetched::NotOurs),
        Err(lost) => Err(lost.failure(servers.servers.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_ends_with_the_number_that_was_accepted() {
        let mut tokens = block(100, 64);
        assert_eq!(tokens.take().map(u64::from), Some(37));
        assert_eq!(u64::from(tokens.last()), 100);
        let mut one = block(100, 1);
        assert_eq!(one.take().map(u64::from), Some(100));
        assert!(one.take().is_none());
    }
}
