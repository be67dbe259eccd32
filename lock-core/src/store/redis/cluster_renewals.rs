//! Renewing leases in a cluster: one message to each node that has some of them, wherever their slots are now.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;

use crate::store::{
    Failure, Renew, Renewed,
    redis::{
        connection::{
            CLOCK,
            capabilities::{Capabilities, Compare},
        },
        renewals::{Renewals, renew_at},
        scripts::NodeRole,
        topology::{
            key_location::KeyLocation,
            servers::{MOST_HOPS, RedisServers},
        },
    },
};

pub(super) async fn renew(servers: &RedisServers, batch: &[Renew], within: Duration) -> Renewals {
    let started = CLOCK.now();
    let none = || Err(Failure::no_answer("the time for a renewal is over"));
    let mut renewals: Renewals = batch.iter().map(|_| none()).collect();
    let location =
        |(number, request): (usize, &Renew)| (number, servers.location(&request.full_key));
    let mut open: Vec<(usize, KeyLocation)> = batch.iter().enumerate().map(location).collect();
    for _ in 0..=MOST_HOPS {
        let left = within.saturating_sub(CLOCK.now().since(started));
        if open.is_empty() || left.is_zero() {
            break;
        }
        let mut asked = JoinSet::new();
        for group in grouped(open) {
            let requests: Vec<_> = group
                .0
                .iter()
                .map(|(number, _)| batch[*number].clone())
                .collect();
            // At the same time: a node that does not reply must not cost the leases at another one.
            asked.spawn(async move {
                let answers = renew_group(&group, &requests, left).await;
                (group, answers)
            });
        }
        open = Vec::new();
        // Ends with the last reply, each of which is bounded by what is left.
        while let Some(answer) = asked.join_next().await {
            let Ok((Group(members), answers)) = answer else {
                continue;
            };
            for ((number, location), answer) in members.into_iter().zip(answers) {
                if let Err(failure) = &answer
                    && let Some(next) = servers.follow(&location, failure)
                {
                    open.push((number, next));
                }
                renewals[number] = answer;
            }
        }
    }
    renewals
}

/// The renewals that go to one server together: their indexes in the batch, and each one's key location.
struct Group(Vec<(usize, KeyLocation)>);

/// One group for each server, and for each key with a location elsewhere. It waits for nothing.
fn grouped(open: Vec<(usize, KeyLocation)>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for member in open {
        let location = &member.1;
        let together = |Group(others): &&mut Group| {
            let other = &others[0].1;
            Arc::ptr_eq(&other.server, &location.server)
                && other.node_role == NodeRole::SlotOwner
                && location.node_role == NodeRole::SlotOwner
        };
        match groups.iter_mut().find(together) {
            Some(Group(others)) => others.push(member),
            None => groups.push(Group(vec![member])),
        }
    }
    groups
}

async fn renew_group(Group(members): &Group, requests: &[Renew], within: Duration) -> Renewals {
    let started = CLOCK.now();
    let all = async |location: &KeyLocation, requests: &[Renew], within| {
        let answers = renew_at(location, requests, within).await;
        answers.unwrap_or_else(|failure| requests.iter().map(|_| Err(failure.clone())).collect())
    };
    // A transaction is about one slot. Without a connection, the renewal itself reports the failure.
    let location = &members[0].1;
    let by_slot = matches!(
        location.capabilities(within).await,
        Ok(Capabilities::Commands(Compare::Watch))
    );
    let left = || within.saturating_sub(CLOCK.now().since(started));
    if !by_slot {
        return all(location, requests, left()).await;
    }
    let mut renewals: Vec<Option<Result<Renewed, Failure>>> = vec![None; requests.len()];
    // Each round renews those of one slot.
    while let Some(first) = renewals.iter().position(Option::is_none) {
        let location = &members[first].1;
        let numbers: Vec<_> = (first..members.len())
            .filter(|number| members[*number].1.slot == location.slot)
            .collect();
        let together: Vec<_> = numbers
            .iter()
            .map(|number| requests[*number].clone())
            .collect();
        let answers = all(location, &together, left()).await;
        for (number, answer) in numbers.into_iter().zip(answers) {
            renewals[number] = Some(answer);
        }
    }
    renewals.into_iter().flatten().collect()
}
