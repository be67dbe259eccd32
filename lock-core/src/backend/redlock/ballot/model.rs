//! A model of everything that can happen to two acquisitions on three servers, of which the second begins after the first was
//! granted. Messages are delivered in every order, and each may be lost, late or repeated. In a separate scenario, a server
//! loses its data at any moment.
//!
//! The clients run the shipped code. The servers follow the rule of `propose.lua`, without the lock itself: a server that has
//! another client's lock accepts nothing, which is equivalent to a lost message. That tokens grow does not depend on mutual
//! exclusion.
//!
//! A message that was sent can be delivered at any later time, and more than once, so it may be late, overtaken or repeated. A
//! message that is never delivered is lost; the time-out that follows can only end a ballot without a token.

use std::collections::{BTreeSet, HashSet};

use crate::backend::redlock::ballot::*;

const SERVERS: usize = 3;

/// The client that asks first, and the client that asks after the first was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Client {
    First,
    Second,
}

/// The tokens of the two clients when the second is not larger.
type Counterexample = (u64, u64);

/// Visits everything that can be reached from a state, and stops at the first counterexample.
fn explore<S: Clone + Eq + std::hash::Hash>(
    start: impl IntoIterator<Item = S>,
    next: impl Fn(&S, &mut Vec<S>) -> Result<(), Counterexample>,
) -> (usize, Option<Counterexample>) {
    let mut seen = HashSet::new();
    let mut open: Vec<S> = Vec::new();
    open.extend(start.into_iter().filter(|state| seen.insert(state.clone())));
    let mut reached = Vec::new();
    while let Some(state) = open.pop() {
        if let Err(found) = next(&state, &mut reached) {
            return (seen.len(), Some(found));
        }
        open.extend(reached.drain(..).filter(|state| seen.insert(state.clone())));
    }
    (seen.len(), None)
}

/// The servers' side of a vote.
#[derive(Clone, Copy)]
struct Rule {
    /// Returns `true` if a server accepts this number, given its counter.
    accepts: fn(number: u64, counter: u64) -> bool,
    /// Returns the counter of a server that has none, given the largest number that it accepts at that time.
    without_counter: fn(bound: u64) -> u64,
}

/// As in `propose.lua`.
const SHIPPED: Rule = Rule {
    accepts: |number, counter| number > counter,
    without_counter: |bound| bound,
};

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ModelServer {
    /// `None` after a loss of data.
    counter: Option<u64>,
    /// Replies to the client that asks now, by the indexes of its proposals, which have not been received yet.
    replies: BTreeSet<(usize, Vote)>,
    /// The indexes of its proposals that were delivered.
    delivered: BTreeSet<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Proposing {
    servers: Vec<ModelServer>,
    client: Client,
    ballot: Ballot,
    /// Messages of the first client that may still arrive while the second asks.
    late: Vec<u64>,
    first_token: u64,
    repeats_left: usize,
    world: World,
}

/// The other events, and how often each may happen: bounded, so that all states can be visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    /// The largest number that a server accepts now.
    bound: u64,
    /// How often the bound grows by one.
    ticks_left: usize,
    /// How often a server loses its data.
    losses_left: usize,
    /// How many messages of each client are delivered, and replied to, a second time. Messages of the first client that arrive
    /// while the second asks are repeated without a bound, because their replies are not received.
    repeats: usize,
}

impl World {
    const WITHOUT_LOSS: Self = Self {
        bound: u64::MAX,
        ticks_left: 0,
        losses_left: 0,
        repeats: 1,
    };

    const WITH_A_LOSS: Self = Self {
        bound: 1,
        ticks_left: 1,
        losses_left: 1,
        repeats: 0,
    };
}

/// The number of proposals of a client. A third would relate to the second as the second does to the first.
const PROPOSALS: usize = 2;

impl Proposing {
    fn start(counters: [Option<u64>; SERVERS], first: u64, world: World) -> Self {
        let server = |counter| ModelServer {
            counter,
            ..ModelServer::default()
        };
        Self {
            servers: counters.map(server).to_vec(),
            client: Client::First,
            ballot: Ballot::new(SERVERS, first, 1, 0),
            late: Vec::new(),
            first_token: 0,
            repeats_left: world.repeats,
            world,
        }
    }

    /// Sorts the servers, which are alike, so that their order makes no difference.
    fn in_order(mut self) -> Self {
        let mut pairs: Vec<_> = self.servers.into_iter().zip(self.ballot.servers).collect();
        pairs.sort_unstable();
        (self.servers, self.ballot.servers) = pairs.into_iter().unzip();
        self
    }

    fn next(&self, rule: Rule, reached: &mut Vec<Self>) -> Result<(), Counterexample> {
        if let Some(left) = self.world.ticks_left.checked_sub(1) {
            let mut state = self.clone();
            state.world.ticks_left = left;
            state.world.bound += 1;
            reached.push(state);
        }
        for (index, server) in self.servers.iter().enumerate() {
            if let Some(left) = self.world.losses_left.checked_sub(1) {
                let mut state = self.clone();
                state.world.losses_left = left;
                state.servers[index].counter = None;
                reached.push(state.in_order());
            }
            for (place, number) in self.ballot.proposals.iter().enumerate() {
                let mut state = self.clone();
                if !state.servers[index].delivered.insert(place) {
                    let Some(left) = self.repeats_left.checked_sub(1) else {
                        continue;
                    };
                    state.repeats_left = left;
                }
                let vote = state.servers[index].count(*number, self.world.bound, rule);
                state.servers[index].replies.insert((place, vote));
                reached.push(state.in_order());
            }
            for number in &self.late {
                let mut state = self.clone();
                state.servers[index].count(*number, self.world.bound, rule);
                reached.push(state.in_order());
            }
            for reply in &server.replies {
                let mut state = self.clone();
                state.servers[index].replies.remove(reply);
                let (place, vote) = *reply;
                match state.ballot.count(index, place, Some(vote)) {
                    BallotStep::Won { number } => state.end(number, reached)?,
                    BallotStep::Propose { place, .. } if place == PROPOSALS => {}
                    BallotStep::Propose { .. } | BallotStep::Wait => reached.push(state.in_order()),
                    BallotStep::Lost(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Ends a client's ballot with its token. After the first client, the second one begins, with any estimate of the time.
    /// After the second client, the tokens are compared.
    fn end(self, token: u64, reached: &mut Vec<Self>) -> Result<(), Counterexample> {
        if self.client == Client::Second {
            return if token > self.first_token {
                Ok(())
            } else {
                Err((self.first_token, token))
            };
        }
        let counters = [0, 1, 2].map(|server| self.servers[server].counter);
        let second = (1..=token + 1).map(|estimate| Self {
            client: Client::Second,
            late: self.ballot.proposals.clone(),
            first_token: token,
            ..Self::start(counters, estimate, self.world)
        });
        reached.extend(second.map(Self::in_order));
        Ok(())
    }
}

impl ModelServer {
    /// As in `propose.lua`.
    fn count(&mut self, number: u64, bound: u64, rule: Rule) -> Vote {
        let forgotten = || (rule.without_counter)(bound);
        let counter = *self.counter.get_or_insert_with(forgotten);
        if number > bound || !(rule.accepts)(number, counter) {
            return Vote::Refused {
                least: counter,
                clock: 0,
            };
        }
        self.counter = Some(number);
        Vote::Accepted {
            clock: 0,
            wanted: false,
        }
    }
}

/// Begins with the counters that an earlier request may have left, in every combination up to the order of the servers.
fn proposing(rule: Rule, world: World) -> (usize, Option<Counterexample>) {
    let counters = [[0, 0, 0], [0, 0, 1], [0, 1, 1]];
    let start = counters.map(|counters| Proposing::start(counters.map(Some), 1, world));
    explore(start, |state, reached| state.next(rule, reached))
}

#[test]
fn a_later_acquisition_has_a_larger_token_whatever_happens_to_the_messages() {
    let (states, found) = proposing(SHIPPED, World::WITHOUT_LOSS);
    assert_eq!(found, None);
    assert!(states > 10_000, "only {states} states were visited");
}

#[test]
fn servers_that_accept_a_number_twice_are_detected() {
    let rule = Rule {
        accepts: |number, counter| number >= counter,
        ..SHIPPED
    };
    let (_, found) = proposing(rule, World::WITHOUT_LOSS);
    assert!(found.is_some());
}

/// The two majorities may have only one server in common, and that one lost its counter.
#[test]
fn a_later_acquisition_has_a_larger_token_even_if_a_server_lost_its_counter() {
    let (states, found) = proposing(SHIPPED, World::WITH_A_LOSS);
    assert_eq!(found, None);
    assert!(states > 10_000, "only {states} states were visited");
}

#[test]
fn servers_that_begin_at_zero_after_a_loss_are_detected() {
    let rule = Rule {
        without_counter: |_| 0,
        ..SHIPPED
    };
    let (_, found) = proposing(rule, World::WITH_A_LOSS);
    assert!(found.is_some());
}

/// The obvious protocol: each server counts for itself, and the largest count of a majority is the token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CounterRule {
    counters: [u64; SERVERS],
    client: Client,
    first_token: u64,
    replies: BTreeSet<(usize, u64)>,
    /// The value that the first client writes back when it has its token, without waiting for a reply, which would be a second
    /// round trip.
    written_back: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteBack {
    No,
    Yes,
}

impl CounterRule {
    fn next(&self, back: WriteBack, reached: &mut Vec<Self>) -> Result<(), Counterexample> {
        for server in 0..SERVERS {
            // One request for each server, without a repetition: the protocol fails nevertheless.
            if self.replies.iter().all(|(other, _)| *other != server) {
                let mut state = self.clone();
                state.counters[server] += 1;
                state.replies.insert((server, state.counters[server]));
                reached.push(state);
            }
            if let Some(token) = self.written_back {
                let mut state = self.clone();
                state.counters[server] = state.counters[server].max(token);
                reached.push(state);
            }
        }
        if self.replies.len() < SERVERS.div_ceil(2) {
            return Ok(());
        }
        let token = self.replies.iter().map(|(_, count)| *count).max();
        let token = token.expect("a majority is not empty");
        match self.client {
            Client::First => reached.push(Self {
                client: Client::Second,
                first_token: token,
                replies: BTreeSet::new(),
                written_back: (back == WriteBack::Yes).then_some(token),
                ..self.clone()
            }),
            Client::Second if token <= self.first_token => return Err((self.first_token, token)),
            Client::Second => {}
        }
        Ok(())
    }
}

fn fencing_counter(back: WriteBack) -> Option<Counterexample> {
    let start = CounterRule {
        // An earlier request has reached a single server.
        counters: [1, 0, 0],
        client: Client::First,
        first_token: 0,
        replies: BTreeSet::new(),
        written_back: None,
    };
    explore([start], |state, reached| state.next(back, reached)).1
}

#[test]
fn the_largest_of_the_servers_own_counters_does_not_grow() {
    assert!(fencing_counter(WriteBack::No).is_some());
}

#[test]
fn the_largest_of_the_servers_own_counters_does_not_grow_even_if_it_is_written_back() {
    assert!(fencing_counter(WriteBack::Yes).is_some());
}
