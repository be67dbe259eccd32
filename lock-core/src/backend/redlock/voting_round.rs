//! Sending a proposal to all servers at the same time, until a majority has replied.
//!
//! Without a majority the client releases what it got at once, as it would release a lease. Otherwise clients that each have a
//! minority keep each other out. It tries again after a random pause, with another owner token: a late release of the old vote then
//! does no harm.

use std::{
    iter,
    sync::{Arc, atomic::Ordering},
};

use tokio::sync::mpsc;

use crate::{
    backend::{
        redis::protocol::voting_server::{LockCondition, Proposal, Vote},
        redlock::{
            at_servers::AtServers,
            ballot::{
                Ballot, BallotStep, NoMajority,
                quorum::{majority, no_majority_text},
            },
            redlock_servers::RedlockServers,
        },
    },
    engine::reply::Contended,
    failure::Failure,
    fencing::FencingBlock,
};

/// Why there was no majority, and what the servers without a vote reported.
pub(super) struct RoundLost {
    pub(super) loss: NoMajority,
    /// Whether a majority said that this client, which had to have the lock, does not have it.
    pub(super) is_definitely_not_ours: bool,
    failures: Vec<Failure>,
    /// Whether some server may have granted us the lock.
    leaves_traces: bool,
}

/// Proposes until the round is decided. Later replies are noted in the record of their server, and have no other effect.
///
/// # Cancel safety
///
/// Requests in flight continue. They are in the records of the servers, so that a release finds them.
pub(super) async fn run_voting_round(
    servers: &Arc<RedlockServers>,
    proposal: Proposal,
    known: u64,
) -> Result<(FencingBlock, Contended), RoundLost> {
    let first = servers.next_number(known, proposal.count);
    let count = servers.servers.len();
    let owner = proposal.owner.clone();
    // A request about a lock that is ours takes no key.
    let may_take = proposal.lock == LockCondition::FreeOrOurs;
    let lock = AtServers::of(&owner, count);
    let mut ballot = Ballot::new(count, first, proposal.count, servers.slack());
    let (sender, mut incoming) = mpsc::unbounded_channel();
    let (mut contended, mut failures) = (Contended::NoneWaiting, Vec::new());
    let (place, number) = (0, first);
    let mut step = BallotStep::Propose { place, number };
    // Bounded by the ballot: a few proposals, and a reply or a time-out of each server to each.
    let loss = loop {
        step = match step {
            BallotStep::Propose { place, number } => {
                // Each server has a time-out of its own, since one that hangs must not delay the others.
                let within = servers.patience(proposal.ttl);
                servers.send_to_all(&sender, |position, server| {
                    let proposal = proposal.clone();
                    let at = may_take.then(|| lock.each[position].clone());
                    async move {
                        let vote = server.vote(&proposal, number, within, at.as_deref());
                        (place, vote.await)
                    }
                });
                BallotStep::Wait
            }
            BallotStep::Wait => match incoming.recv().await {
                Some((server, (place, Ok(vote)))) => {
                    if let Vote::Accepted { wanted: true, .. } = vote {
                        contended = Contended::OthersWaiting;
                    }
                    ballot.count(server, place, vote)
                }
                Some((server, (place, Err(failure)))) => {
                    failures.push(failure);
                    ballot.miss(server, place)
                }
                // This cannot happen: `sender` keeps the channel open.
                None => break NoMajority::Silence,
            },
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
    Err(RoundLost {
        loss,
        is_definitely_not_ours: ballot.is_definitely_held(),
        leaves_traces: may_take && lock.may_hold(),
        failures,
    })
}

/// The fencing tokens that an accepted number stands for; the number is the last of them. A majority accepted all of them together,
/// so its counters are past all of them before any of them is used.
fn block(number: u64, count: u32) -> FencingBlock {
    FencingBlock::new(number + 1 - u64::from(count), count)
}

impl RoundLost {
    /// Whether a next round may be won soon: no majority is out of reach, so this one was lost to other clients, or to late replies.
    fn is_contested(&self, servers: usize) -> bool {
        let not_asked = self.failures.iter().filter(|one| one.is_definite()).count();
        not_asked <= servers - majority(servers)
    }

    /// The failure to report. If some server may have granted the lock, the outcome is unknown.
    pub(super) fn failure(&self, servers: &RedlockServers) -> Failure {
        let what = match self.loss {
            NoMajority::Overtaken => {
                let what =
                    "the servers gave higher fencing tokens to others, or their clocks differ";
                let clocks = servers.servers.iter().filter_map(|one| one.clock_warning());
                let all = iter::once(what.to_owned()).chain(clocks);
                all.collect::<Vec<_>>().join("; ")
            }
            NoMajority::Silence | NoMajority::Busy(_) => {
                no_majority_text(servers.servers.len(), &self.failures)
            }
        };
        if self.is_contested(servers.servers.len()) {
            return Failure::lost_vote(what);
        }
        if self.leaves_traces {
            return Failure::no_reply(what);
        }
        let all =
            |is: fn(&Failure) -> bool| !self.failures.is_empty() && self.failures.iter().all(is);
        if all(|failure| matches!(failure, Failure::Invalid(_))) {
            return self.failures[0].clone();
        }
        if all(|failure| !failure.is_transient()) {
            return Failure::refused(what);
        }
        Failure::not_now(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_contested_unless_a_majority_is_out_of_reach() {
        let lost = |failures: &[fn(&'static str) -> Failure]| RoundLost {
            loss: NoMajority::Silence,
            is_definitely_not_ours: false,
            failures: failures.iter().map(|failure| failure("why")).collect(),
            leaves_traces: true,
        };
        let (late, away) = (Failure::no_reply, Failure::not_now);
        assert!(lost(&[]).is_contested(3));
        assert!(lost(&[late, late]).is_contested(3));
        assert!(lost(&[late, away]).is_contested(3));
        assert!(!lost(&[away, away]).is_contested(3));
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
