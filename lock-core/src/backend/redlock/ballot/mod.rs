//! The client's side of a vote on a fencing token, without I/O: it decides which number to propose, and counts the replies.
//!
//! Only acceptances of the *same* number count towards the majority. Two majorities have a server in common, and that server
//! accepts only numbers above those that it accepted before. So a client that asks after another was granted the lock gets a
//! larger number, no matter which messages were lost, late, repeated or overtaken. `model.rs` checks exactly this, with the code
//! of this file.
//!
//! Rejected: a token from each server's own counter, of which the client takes the largest. That also takes one round trip, but
//! later tokens can be smaller, whether or not the largest is written back.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    backend::{redis::protocol::voting_server::Vote, redlock::ballot::quorum::majority},
    engine::reply::Expiry,
    fencing::PER_MILLI,
};

#[cfg(test)]
mod model;
pub(crate) mod quorum;

/// Each refusal of a number leads to a new one, at most this often for one request.
const MOST_PROPOSALS: usize = 4;

/// A clock that differs from a majority's by more than this is not followed. A server refuses a number twice as far from its
/// own clock.
const STRAY: u64 = 500 * PER_MILLI;

/// The votes on one request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ballot {
    /// The proposed numbers, the earliest first.
    proposals: Vec<u64>,
    servers: Vec<ServerVotes>,
    /// The number of fencing tokens for which a proposal stands.
    count: u32,
    /// How far a second proposal exceeds the minimum, so that concurrent proposals of others do not overtake it. The next one
    /// exceeds it by twice as much.
    slack: u64,
}

/// The replies of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ServerVotes {
    /// The proposals that it accepted, by their indexes.
    accepted: BTreeSet<usize>,
    /// Its reply to the last proposal. An error means no reply, or none that counts, so that it is no longer awaited.
    last: Option<Result<Vote, ()>>,
    /// The largest number that it reported.
    least: Option<u64>,
}

/// The next step of a ballot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BallotStep {
    /// Wait for the next reply.
    Wait,
    /// Propose this number to all servers as well.
    Propose {
        place: usize,
        number: u64,
    },
    /// A majority accepted this number.
    Won {
        number: u64,
    },
    Lost(NoMajority),
}

/// The reason why there can no longer be a majority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoMajority {
    /// Too many servers have another client's token in the lock. Contains the time until enough of these locks end.
    Busy(Expiry),
    /// Too many servers gave no reply that counts.
    Silence,
    /// Other clients were repeatedly given higher numbers.
    Overtaken,
}

impl Ballot {
    /// `first` is the first proposal, for `count` tokens of which it is the last.
    pub(crate) fn new(servers: usize, first: u64, count: u32, slack: u64) -> Self {
        Self {
            proposals: vec![first],
            servers: vec![ServerVotes::default(); servers],
            count,
            slack,
        }
    }

    /// Counts a server's reply to the proposal with this index; `None` if it did not reply in time, or its reply does not
    /// count. A reply may arrive late, or twice.
    pub(crate) fn count(&mut self, server: usize, place: usize, vote: Option<Vote>) -> BallotStep {
        let is_last = place + 1 == self.proposals.len();
        let votes = &mut self.servers[server];
        let least = vote.map(|vote| match vote {
            Vote::Accepted { clock, .. } => {
                votes.accepted.insert(place);
                clock.max(self.proposals[place])
            }
            Vote::Refused { least, .. } | Vote::Held { least, .. } => least,
        });
        votes.least = votes.least.max(least);
        if is_last {
            votes.last = Some(vote.ok_or(()));
        }
        self.next_step(place)
    }

    fn next_step(&mut self, place: usize) -> BallotStep {
        let accepted = |votes: &&ServerVotes| votes.accepted.contains(&place);
        if self.servers.iter().filter(accepted).count() >= self.majority() {
            return BallotStep::Won {
                number: self.proposals[place],
            };
        }
        let (mut open, mut refused, mut silent) = (0, 0, 0);
        let (mut held, mut overtaken) = (Vec::new(), false);
        for votes in &self.servers {
            match votes.last {
                None | Some(Ok(Vote::Accepted { .. })) => open += 1,
                Some(Ok(Vote::Held { left, .. })) => held.push(left),
                Some(Err(())) => silent += 1,
                Some(Ok(Vote::Refused { least, .. })) => {
                    refused += 1;
                    overtaken |= least.abs_diff(self.latest()) < STRAY;
                }
            }
        }
        if silent > self.servers.len() - self.majority() {
            return BallotStep::Lost(NoMajority::Silence);
        }
        if open + refused < self.majority() {
            let missing = self.majority() - open - refused;
            let busy = (!held.is_empty()).then(|| NoMajority::Busy(busy_for(held, missing)));
            return BallotStep::Lost(busy.unwrap_or(NoMajority::Silence));
        }
        let is_hopeless = open < self.majority();
        // A server with a wrong clock does not cause a second round for the others. A proposal that was overtaken causes one at
        // once, even if the remaining servers may still suffice, because some of them may never reply.
        if (overtaken || is_hopeless) && self.proposals.len() < MOST_PROPOSALS {
            return self.propose_more();
        }
        if is_hopeless {
            return BallotStep::Lost(NoMajority::Overtaken);
        }
        BallotStep::Wait
    }

    /// Proposes a number above all that were reported by servers whose clocks are near those of a majority.
    fn propose_more(&mut self) -> BallotStep {
        let named = self.servers.iter().filter_map(|votes| votes.least);
        let mut named: Vec<_> = named.collect();
        named.sort_unstable();
        let middle = named[(named.len() - 1).min(self.majority() - 1)];
        // The number must also exceed our own last one, which some servers may have accepted, unless that was far from their clocks.
        named.push(self.latest());
        let near = |least: &u64| least.saturating_sub(middle) < STRAY;
        let least = named.into_iter().filter(near).max().unwrap_or(middle);
        let place = self.proposals.len();
        let slack = self.slack << (place - 1);
        let number = least + u64::from(self.count) + slack;
        self.proposals.push(number);
        for votes in &mut self.servers {
            // A server that is silent is not awaited in the next round.
            votes.last = votes.last.filter(Result::is_err);
        }
        BallotStep::Propose { place, number }
    }

    fn latest(&self) -> u64 {
        self.proposals[self.proposals.len() - 1]
    }

    fn majority(&self) -> usize {
        majority(self.servers.len())
    }
}

/// Returns when enough of the locks have ended that there can be a majority.
fn busy_for(mut left: Vec<Option<Duration>>, missing: usize) -> Expiry {
    // Locks without an expiry are sorted last.
    left.sort_unstable_by_key(|time| time.unwrap_or(Duration::MAX));
    match left.get(missing - 1) {
        Some(Some(time)) => Expiry::In(*time),
        Some(None) => Expiry::Never,
        None => Expiry::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000_000;
    const ACCEPTED: Vote = Vote::Accepted {
        clock: NOW,
        wanted: false,
    };

    impl Ballot {
        fn vote(&mut self, server: usize, place: usize, vote: Vote) -> BallotStep {
            self.count(server, place, Some(vote))
        }
    }

    fn ballot(servers: usize) -> Ballot {
        Ballot::new(servers, NOW, 1, 100)
    }

    fn refused(least: u64) -> Vote {
        Vote::Refused { least, clock: NOW }
    }

    fn held(seconds: u64) -> Vote {
        Vote::Held {
            least: NOW,
            left: Some(Duration::from_secs(seconds)),
        }
    }

    #[test]
    fn a_majority_wins_without_the_rest() {
        let mut ballot = ballot(5);
        assert_eq!(ballot.vote(0, 0, ACCEPTED), BallotStep::Wait);
        assert_eq!(
            ballot.vote(0, 0, ACCEPTED),
            BallotStep::Wait,
            "a repeated vote counts once"
        );
        assert_eq!(ballot.count(1, 0, None), BallotStep::Wait);
        assert_eq!(ballot.vote(2, 0, ACCEPTED), BallotStep::Wait);
        assert_eq!(ballot.vote(3, 0, ACCEPTED), BallotStep::Won { number: NOW });
    }

    #[test]
    fn a_refusal_leads_to_a_higher_number_but_the_first_may_still_win() {
        let mut ballot = ballot(3);
        let second = NOW + 700 + 1 + 100;
        let step = BallotStep::Propose {
            place: 1,
            number: second,
        };
        assert_eq!(ballot.vote(0, 0, refused(NOW + 700)), step);
        assert_eq!(ballot.vote(1, 1, ACCEPTED), BallotStep::Wait);
        assert_eq!(
            ballot.vote(2, 0, ACCEPTED),
            BallotStep::Wait,
            "a vote for another number"
        );
        let mut with_the_first = ballot.clone();
        assert_eq!(
            with_the_first.vote(1, 0, ACCEPTED),
            BallotStep::Won { number: NOW }
        );
        assert_eq!(
            ballot.vote(0, 1, ACCEPTED),
            BallotStep::Won { number: second }
        );
    }

    #[test]
    fn a_deviating_clock_is_not_followed_and_costs_nothing() {
        let mut ballot = ballot(3);
        let stray = NOW + 3_000_000;
        assert_eq!(ballot.vote(0, 0, refused(stray)), BallotStep::Wait);
        assert_eq!(ballot.vote(1, 0, ACCEPTED), BallotStep::Wait);
        let BallotStep::Propose { number, .. } = ballot.clone().vote(2, 0, refused(NOW + 5)) else {
            panic!("no higher number");
        };
        assert!(number < NOW + 1000, "{}", number - NOW);
        assert_eq!(ballot.vote(2, 0, ACCEPTED), BallotStep::Won { number: NOW });
    }

    #[test]
    fn a_wrong_estimate_is_replaced_by_the_servers_time() {
        let mut ballot = Ballot::new(3, NOW + 9_000_000, 1, 100);
        assert_eq!(ballot.vote(0, 0, refused(NOW)), BallotStep::Wait);
        let step = ballot.vote(1, 0, refused(NOW + 10));
        let number = NOW + 10 + 1 + 100;
        assert_eq!(step, BallotStep::Propose { place: 1, number });
    }

    #[test]
    fn a_block_begins_above_every_refused_number() {
        let mut ballot = Ballot::new(3, NOW, 64, 0);
        let number = NOW + 7 + 64;
        assert_eq!(
            ballot.vote(0, 0, refused(NOW + 7)),
            BallotStep::Propose { place: 1, number }
        );
    }

    #[test]
    fn proposals_exceed_others_by_growing_steps_and_are_bounded() {
        let mut ballot = ballot(3);
        let mut refused_at = NOW;
        for place in 1..MOST_PROPOSALS {
            refused_at += 1000;
            let BallotStep::Propose { number, .. } = ballot.vote(0, place - 1, refused(refused_at))
            else {
                panic!("no proposal {place}");
            };
            assert_eq!(number, refused_at + 1 + (100 << (place - 1)));
        }
        let last = MOST_PROPOSALS - 1;
        assert_eq!(
            ballot.vote(0, last, refused(refused_at + 1000)),
            BallotStep::Wait
        );
        let step = ballot.vote(1, last, refused(refused_at + 1000));
        assert_eq!(step, BallotStep::Lost(NoMajority::Overtaken));
    }

    #[test]
    fn a_lock_is_busy_until_a_majority_of_the_servers_is_free() {
        let mut ballot = ballot(5);
        assert_eq!(ballot.vote(0, 0, held(7)), BallotStep::Wait);
        assert_eq!(ballot.vote(1, 0, ACCEPTED), BallotStep::Wait);
        assert_eq!(ballot.vote(2, 0, held(3)), BallotStep::Wait);
        assert_eq!(ballot.vote(3, 0, ACCEPTED), BallotStep::Wait);
        let mut endless = ballot.clone();
        let soonest = NoMajority::Busy(Expiry::In(Duration::from_secs(3)));
        assert_eq!(ballot.vote(4, 0, held(5)), BallotStep::Lost(soonest));
        let without_an_end = Vote::Held {
            least: NOW,
            left: None,
        };
        assert_eq!(
            endless.vote(4, 0, without_an_end),
            BallotStep::Lost(soonest)
        );
        let mut all = self::ballot(3);
        assert_eq!(all.vote(0, 0, without_an_end), BallotStep::Wait);
        let never = NoMajority::Busy(Expiry::Never);
        assert_eq!(all.vote(1, 0, without_an_end), BallotStep::Lost(never));
    }

    #[test]
    fn too_much_silence_is_not_a_busy_lock() {
        let mut ballot = ballot(3);
        assert_eq!(ballot.vote(0, 0, held(7)), BallotStep::Wait);
        let mut busy = ballot.clone();
        assert!(matches!(
            busy.count(1, 0, None),
            BallotStep::Lost(NoMajority::Busy(_))
        ));
        let mut ballot = self::ballot(3);
        assert_eq!(ballot.count(0, 0, None), BallotStep::Wait);
        assert_eq!(
            ballot.count(1, 0, None),
            BallotStep::Lost(NoMajority::Silence)
        );
    }
}
