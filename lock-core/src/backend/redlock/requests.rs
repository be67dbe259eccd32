//! Acquiring and releasing a lock.
//!
//! An acquire is a ballot with real servers. A proposal is sent to all of them at the same time, and awaited until a majority
//! has replied.
//!
//! Without a majority, the client releases its minority of votes at once, as it would release a lease. Otherwise, clients that
//! each have a minority would keep each other out. It tries again after a random pause, with another owner token, so that a late
//! release of the old votes does no harm.

use std::sync::{Arc, atomic::Ordering};

use tokio::sync::mpsc;

use crate::{
    backend::{
        Acquire, Answered, Release,
        in_flight::Order,
        redis::protocol::voting_server::{Proposal, Vote},
        redlock::{
            RedlockServers,
            at_servers::AtServers,
            ballot::{
                Ballot, BallotStep, NoMajority,
                quorum::{Replies, majority},
            },
            restart_quarantine::CLOCK,
            spawn_each,
        },
    },
    engine::reply::{AcquireOutcome, Busy, QueueMode, ReleaseOutcome, WakeUpMode},
    failure::Failure,
    fencing::FencingBlock,
    runtime::jitter::jittered,
};

/// Makes one try with this owner token.
///
/// # Cancel safety
///
/// It runs on the manager's executor, and each request in a separate task. The record of each server has its requests, so that a
/// release finds those in flight. Replies that arrive after the decision are recorded there, and have no other effect.
pub(super) async fn acquire(
    servers: Arc<RedlockServers>,
    request: Acquire,
) -> Result<Answered<AcquireOutcome>, Failure> {
    let (owner, ttl, known) = (request.owner, request.ttl, request.known_fencing);
    let waits = request.queue_mode != QueueMode::DoNotQueue;
    if waits && let Some(until) = servers.back_off.end(&owner.full_key) {
        let until = until.min(CLOCK.now().after(ttl / 4));
        CLOCK.sleep_until(until).await;
    }
    // For the caller, all servers are one order. The requests in flight to each of them are in the record of that server.
    owner.in_flight.note_sent_on(Order::LOCAL);
    let proposal = Proposal {
        owner: owner.clone(),
        ttl,
        count: request.tokens,
        mark: servers.settings.timing.mark() * u32::from(waits),
    };
    let lock = AtServers::of(&owner, servers.count());
    let mut replies = Replies::of(servers.count());
    let round = run_round(&servers, lock, &proposal, known, &mut replies);
    let outcome = match round.await {
        Ok(number) => AcquireOutcome::Granted(block(number, proposal.count).into()),
        // A waiter tries again with a new owner token. The caller releases this one, because a minority may have accepted it.
        Err(NoMajority::Busy(expiry)) => {
            AcquireOutcome::Busy(Busy::without_queue(expiry, WakeUpMode::PollWithNewToken))
        }
        Err(NoMajority::Silence) => return Err(failure(lock, &replies, replies.no_majority())),
        Err(NoMajority::Overtaken) => {
            let what = "the servers gave higher fencing tokens to others, or their clocks differ";
            let clocks = servers.servers.iter().filter_map(|one| one.clock_warning());
            let mut all = vec![what.to_owned()];
            all.extend(clocks);
            return Err(failure(lock, &replies, replies.failure(all.join("; "))));
        }
    };
    Ok(Answered {
        outcome,
        // Requests to a minority may be in flight.
        order: None,
    })
}

/// Makes one try of a release on all servers that may have the lock. The first outcome is that of a majority, so that no caller
/// waits for a server that is down. Tries after that outcome wait for all replies.
///
/// # Cancel safety
///
/// Each request runs in a separate task, which ends with the reply or a time-out, and records it. The next try waits for that.
pub(super) async fn release(
    servers: Arc<RedlockServers>,
    request: Release,
) -> Result<Answered<ReleaseOutcome>, Failure> {
    let lock = AtServers::of(&request.owner, servers.count());
    let mut incoming = servers.request_all(|position, server| {
        let (at, request) = (lock.each[position].clone(), request.clone());
        async move { at.release(&server.node, request).await }
    });
    let had_outcome = lock.is_released.load(Ordering::Acquire);
    let mut replies = Replies::of(servers.count());
    while let Some((server, reply)) = incoming.recv().await {
        replies.note(server, reply);
        if !had_outcome && replies.outcome().is_some() {
            break;
        }
    }
    let order = lock.order();
    let outcome = match replies.result() {
        // The driver would give up after a refusal, but servers that have not refused may still have the key.
        Err(failure) if !failure.is_transient() && order.is_none() => {
            return Err(failure.executed_in_part());
        }
        outcome => outcome?,
    };
    if !lock.is_released.swap(true, Ordering::AcqRel) && lock.is_wanted.load(Ordering::Acquire) {
        let (now, pause) = (CLOCK.now(), jittered(servers.settings.timing.polling_pause));
        (servers.back_off).begin(&request.owner.full_key, now.after(pause), now);
    }
    Ok(Answered { outcome, order })
}

/// Proposes until the round is decided. Returns the number that a majority accepted.
async fn run_round(
    servers: &RedlockServers,
    lock: &AtServers,
    proposal: &Proposal,
    known: u64,
    replies: &mut Replies<Vote>,
) -> Result<u64, NoMajority> {
    let (count, first) = (proposal.count, servers.next_number(known, proposal.count));
    let mut ballot = Ballot::new(servers.count(), first, count, servers.slack());
    let (sender, mut incoming) = mpsc::unbounded_channel();
    let (place, number) = (0, first);
    let mut step = BallotStep::Propose { place, number };
    // Bounded by the ballot: a few proposals, and one reply or time-out of each server to each of them.
    loop {
        step = match step {
            BallotStep::Propose { place, number } => {
                // Each server has its own time-out, since one that hangs must not delay the others.
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
                    return Err(NoMajority::Silence);
                };
                replies.note(server, vote.clone());
                ballot.count(server, place, vote.ok())
            }
            // A majority whose clocks are far behind would give out a number that is not larger than an earlier one.
            BallotStep::Won { number } if number - u64::from(count) < known => {
                return Err(NoMajority::Overtaken);
            }
            BallotStep::Won { number } => {
                let is_wanted = |vote: &Vote| matches!(vote, Vote::Accepted { wanted: true, .. });
                if replies.said().any(is_wanted) {
                    lock.is_wanted.store(true, Ordering::Release);
                }
                return Ok(number);
            }
            BallotStep::Lost(loss) => return Err(loss),
        };
    }
}

/// Returns the failure of a round. If some server may have granted the lock, the outcome is unknown.
fn failure(lock: &AtServers, replies: &Replies<Vote>, failure: Failure) -> Failure {
    let text = failure.text();
    match failure {
        _ if is_contested(lock.each.len(), replies) => Failure::lost_vote(text),
        _ if lock.may_hold() => Failure::no_reply(text),
        Failure::NoReply(_) => Failure::not_now(text),
        definite => definite,
    }
}

/// Returns `true` if another round may be won soon: a majority is within reach, so this round was lost to other clients, or to
/// late replies.
fn is_contested(servers: usize, replies: &Replies<Vote>) -> bool {
    let not_asked = replies.failures().filter(|one| one.is_definite()).count();
    not_asked <= servers - majority(servers)
}

/// Returns the block of fencing tokens that an accepted number stands for, of which it is the last. A majority accepted all of
/// them together, so no counter of that majority is below any of them before the first is used.
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
