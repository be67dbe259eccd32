//! Acquiring a lock: a ballot with real servers. A proposal goes to all of them at the same time, until a majority has replied.
//!
//! Without a majority the client releases what it got at once, as it would release a lease. Otherwise clients that each have a
//! minority keep each other out. It tries again after a random pause, with another owner token: a late release of the old vote then
//! does no harm.

use std::{
    iter,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::sync::mpsc;

use crate::{
    backend::{
        Acquire, Answered,
        in_flight::Order,
        redis::protocol::voting_server::{LockCondition, Proposal, Vote},
        redlock::{
            at_servers::AtServers,
            ballot::{
                Ballot, BallotStep, NoMajority,
                quorum::{Replies, majority},
            },
            redlock_server::CLOCK,
            redlock_servers::{RedlockServers, spawn_each},
        },
    },
    engine::reply::{AcquireOutcome, Busy, Contended, Expiry, QueueMode, WakeUpMode},
    failure::Failure,
    fencing::FencingBlock,
};

/// Why a round gave no tokens.
pub(super) enum RoundLost {
    /// Too many servers have another client's token in the lock, or not ours, which had to be there.
    Busy(Expiry),
    Failed(Failure),
}

pub(super) async fn acquire(
    servers: Arc<RedlockServers>,
    request: Acquire,
) -> Result<Answered<AcquireOutcome>, Failure> {
    let (owner, ttl) = (request.owner, request.ttl);
    let waits = request.queue_mode != QueueMode::DoNotQueue;
    if waits && let Some(until) = servers.back_off.end(&owner.full_key) {
        let until = until.min(CLOCK.now().after(ttl / 4));
        CLOCK.sleep_until(until).await;
    }
    // For the caller, all servers are one order. What is in flight to each of them is in the record of that server.
    owner.in_flight.note_sent_on(Order::LOCAL);
    let mark = if waits {
        servers.timing.mark()
    } else {
        Duration::ZERO
    };
    let proposal = Proposal {
        owner,
        ttl,
        count: request.tokens,
        lock: LockCondition::FreeOrOurs,
        mark,
    };
    let outcome = match run_round(&servers, proposal, request.known_fencing).await {
        Ok((tokens, _)) => AcquireOutcome::Granted(tokens.into()),
        // Each waiter tries again, with a new owner token. The caller releases this one: a minority may have accepted it.
        Err(RoundLost::Busy(expiry)) => {
            AcquireOutcome::Busy(Busy::without_queue(expiry, WakeUpMode::PollWithNewToken))
        }
        Err(RoundLost::Failed(failure)) => return Err(failure),
    };
    Ok(Answered {
        outcome,
        // Requests to a minority may be in flight.
        order: None,
    })
}

/// Proposes until the round is decided. Later replies are noted in the record of their server, and have no other effect.
///
/// # Cancel safety
///
/// Requests in flight continue. They are in the records of the servers, so that a release finds them.
pub(super) async fn run_round(
    servers: &Arc<RedlockServers>,
    proposal: Proposal,
    known: u64,
) -> Result<(FencingBlock, Contended), RoundLost> {
    let first = servers.next_number(known, proposal.count);
    let count = servers.count();
    let owner = proposal.owner.clone();
    let lock = AtServers::of(&owner, count);
    let mut ballot = Ballot::new(count, first, proposal.count, servers.slack());
    let (sender, mut incoming) = mpsc::unbounded_channel();
    let (mut contended, mut replies) = (Contended::NoneWaiting, Replies::of(count));
    let (place, number) = (0, first);
    let mut step = BallotStep::Propose { place, number };
    // Bounded by the ballot: a few proposals, and a reply or a time-out of each server to each.
    let loss = loop {
        step = match step {
            BallotStep::Propose { place, number } => {
                // Each server has a time-out of its own, since one that hangs must not delay the others.
                let within = servers.patience(proposal.ttl);
                let each = servers.servers.iter().cloned().zip(&lock.each).enumerate();
                let votes = each.map(|(position, (server, at))| {
                    let (proposal, at) = (proposal.clone(), at.clone());
                    async move {
                        let vote = server.vote(&proposal, number, within, &at);
                        (position, place, vote.await)
                    }
                });
                spawn_each(&sender, votes);
                BallotStep::Wait
            }
            BallotStep::Wait => {
                // `sender` keeps the channel open.
                let Some((server, place, vote)) = incoming.recv().await else {
                    break NoMajority::Silence;
                };
                replies.note(server, vote.clone());
                if let Ok(Vote::Accepted { wanted: true, .. }) = vote {
                    contended = Contended::OthersWaiting;
                }
                match vote {
                    Ok(vote) => ballot.count(server, place, vote),
                    Err(_) => ballot.miss(server, place),
                }
            }
            // A majority with clocks far behind would give out a number that is no larger than an earlier one.
            BallotStep::Won { number } if number - u64::from(proposal.count) < known => {
                break NoMajority::Overtaken;
            }
            BallotStep::Won { number } => {
                if contended == Contended::OthersWaiting {
                    lock.is_wanted.store(true, Ordering::Release);
                }
                return Ok((block(number, proposal.count), contended));
            }
            BallotStep::Lost(loss) => break loss,
        };
    };
    let failure = match loss {
        NoMajority::Busy(expiry) => return Err(RoundLost::Busy(expiry)),
        NoMajority::Silence => replies.no_majority(),
        NoMajority::Overtaken => {
            let what = "the servers gave higher fencing tokens to others, or their clocks differ";
            let clocks = servers.servers.iter().filter_map(|one| one.clock_warning());
            let all: Vec<_> = iter::once(what.to_owned()).chain(clocks).collect();
            replies.failure(all.join("; "))
        }
    };
    // If some server may have granted the lock, the outcome is unknown. A request about a lock that is ours takes no key.
    let leaves_traces = proposal.lock == LockCondition::FreeOrOurs && lock.may_hold();
    let text = failure.text();
    Err(RoundLost::Failed(match failure {
        _ if is_contested(count, &replies) => Failure::lost_vote(text),
        _ if leaves_traces => Failure::no_reply(text),
        Failure::NoReply(_) => Failure::not_now(text),
        definite => definite,
    }))
}

/// Whether a next round may be won soon: no majority is out of reach, so this one was lost to other clients, or to late replies.
fn is_contested(servers: usize, replies: &Replies<Vote>) -> bool {
    let not_asked = replies.failures().filter(|one| one.is_definite()).count();
    not_asked <= servers - majority(servers)
}

/// The fencing tokens that an accepted number stands for; the number is the last of them. A majority accepted all of them together,
/// so its counters are past all of them before any of them is used.
fn block(number: u64, count: u32) -> FencingBlock {
    FencingBlock::new(number + 1 - u64::from(count), count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_contested_unless_a_majority_is_out_of_reach() {
        let is_contested = |failures: &[fn(&'static str) -> Failure]| {
            let mut replies = Replies::of(3);
            let each = failures.iter().enumerate();
            each.for_each(|(server, failure)| replies.note(server, Err(failure("why"))));
            super::is_contested(3, &replies)
        };
        let (late, away) = (Failure::no_reply, Failure::not_now);
        assert!(is_contested(&[]));
        assert!(is_contested(&[late, late]));
        assert!(is_contested(&[late, away]));
        assert!(!is_contested(&[away, away]));
    }

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
