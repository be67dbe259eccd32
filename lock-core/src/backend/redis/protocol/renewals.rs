//! The renewal of many leases at once, by one message to each server that has some of them, wherever their slots are now.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{
        Renew,
        redis::{
            protocol::{
                programs::{LockKeys, RenewArguments, renew_call},
                replies::read_renewed,
                scripts::RENEW,
            },
            topology::{
                key_location::KeyLocation,
                servers::{MOST_HOPS, RedisServers},
            },
            transport::{CLOCK, redirect::NodeRole},
        },
    },
    engine::reply::Renewed,
    failure::Failure,
    runtime::together::together,
};

type Renewals = Vec<Result<Renewed, Failure>>;

pub(crate) async fn renew(servers: &RedisServers, batch: &[Renew], within: Duration) -> Renewals {
    let started = CLOCK.now();
    let none = Failure::no_reply("the renewal timed out");
    let mut renewals = vec![Err(none); batch.len()];
    let location =
        |(number, request): (usize, &Renew)| (number, servers.location(&request.owner.full_key));
    let mut open: Vec<(usize, KeyLocation)> = batch.iter().enumerate().map(location).collect();
    for _ in 0..=MOST_HOPS {
        let left = within.saturating_sub(CLOCK.now().since(started));
        if open.is_empty() || left.is_zero() {
            break;
        }
        // All nodes are asked at the same time, so that a node that does not reply costs no lease on another node.
        let asked = grouped(open).into_iter().map(|members| async move {
            let requests = members.iter().map(|(number, _)| batch[*number].clone());
            let requests: Vec<_> = requests.collect();
            let replies = renew_at(&members[0].1, &requests, left).await;
            let replies = replies.unwrap_or_else(|failure| vec![Err(failure); requests.len()]);
            members.into_iter().zip(replies)
        });
        open = Vec::new();
        for ((number, location), reply) in together(asked).await.into_iter().flatten() {
            if let Err(failure) = &reply
                && let Some(next) = servers.follow(&location, failure)
            {
                open.push((number, next));
            }
            renewals[number] = reply;
        }
    }
    renewals
}

/// Makes one group for each server, and one for each key of a slot in migration: the indexes in the batch, with the key locations.
fn grouped(open: Vec<(usize, KeyLocation)>) -> Vec<Vec<(usize, KeyLocation)>> {
    let mut groups: Vec<Vec<(usize, KeyLocation)>> = Vec::new();
    for member in open {
        let location = &member.1;
        let together = |others: &&mut Vec<(usize, KeyLocation)>| {
            let other = &others[0].1;
            Arc::ptr_eq(&other.server, &location.server)
                && other.node_role == NodeRole::ServesSlot
                && location.node_role == NodeRole::ServesSlot
        };
        match groups.iter_mut().find(together) {
            Some(others) => others.push(member),
            None => groups.push(vec![member]),
        }
    }
    groups
}

async fn renew_at(
    location: &KeyLocation,
    batch: &[Renew],
    within: Duration,
) -> Result<Renewals, Failure> {
    if !location.capabilities(within).await?.scripts {
        return Ok(location.renew_by_commands(batch, within).await);
    }
    let words = batch.iter().map(|request| {
        let keys = LockKeys::new(location, &request.owner.full_key);
        let arguments = RenewArguments::new(location, request).words();
        (keys, arguments, request.owner.mode)
    });
    let words: Vec<_> = words.collect();
    let calls = words
        .iter()
        .map(|(keys, arguments, mode)| renew_call(keys, arguments, *mode));
    let calls: Vec<_> = calls.collect();
    let connection = &location.server.connection;
    let ran = location.run_each(connection, &RENEW, &calls, within, None);
    let (id, replies) = ran.await?;
    let mut renewals: Renewals = replies.iter().map(read_renewed).collect();
    for renewed in &renewals {
        connection.expect_its_form(id, renewed);
    }
    let none = Failure::no_reply("the renewal got no reply");
    renewals.resize(batch.len(), Err(none));
    Ok(renewals)
}
