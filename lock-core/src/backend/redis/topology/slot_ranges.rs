//! The query to a node of a cluster for the slots of all nodes.

use std::{collections::HashSet, time::Duration};

use redis::{ServerError, Value};

use crate::{
    backend::redis::{
        topology::server::RedisServer,
        transport::{address::Address, command::Arg::Text, errors, redirect::SLOTS},
    },
    failure::Failure,
};

/// Larger than the number of nodes of any cluster. A map with more nodes is refused.
const MOST_NODES: usize = 2_000;

/// Some slots, and the node that has them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SlotRange {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) host: String,
    pub(super) port: u16,
}

/// Sends `CLUSTER SLOTS`.
pub(super) async fn fetch(
    server: &RedisServer,
    within: Duration,
) -> Result<Vec<SlotRange>, Failure> {
    let words = [Text("CLUSTER"), Text("SLOTS")];
    let (_, reply) = server.connection.send(&[&words], within, None).await?;
    read_ranges(&reply, server.connection.address())
}

/// Reads the reply to `CLUSTER SLOTS`, in which a node may omit its own host.
fn read_ranges(reply: &Value, asked: &Address) -> Result<Vec<SlotRange>, Failure> {
    let parts = match reply {
        Value::Array(parts) if parts.len() <= usize::from(SLOTS) => parts,
        Value::ServerError(error) => return Err(no_map(error, asked)),
        _ => return Err(errors::nonsense("CLUSTER SLOTS")),
    };
    let own = asked.place().map_or("", |(host, _)| host);
    let ranges: Option<Vec<_>> = parts.iter().map(|part| read_range(part, own)).collect();
    let ranges = ranges.ok_or_else(|| errors::nonsense("CLUSTER SLOTS"))?;
    let places = ranges.iter().map(|range| (&range.host, range.port));
    let places: HashSet<_> = places.collect();
    if places.is_empty() || places.len() > MOST_NODES {
        return Err(Failure::not_now(format!(
            "{} knows no node that has slots",
            asked.shown()
        )));
    }
    Ok(ranges)
}

fn read_range(range: &Value, own: &str) -> Option<SlotRange> {
    let [Value::Int(first), Value::Int(last), Value::Array(owner), ..] = range.as_sequence()?
    else {
        return None;
    };
    let (host, port) = match &owner[..] {
        [Value::BulkString(host), Value::Int(port), ..] => (std::str::from_utf8(host).ok()?, *port),
        [Value::Nil, Value::Int(port), ..] => ("", *port),
        _ => return None,
    };
    let slot = |slot: i64| u16::try_from(slot).ok().filter(|slot| *slot < SLOTS);
    Some(SlotRange {
        first: slot(*first)?,
        last: slot(*last)?,
        host: if matches!(host, "" | "?") { own } else { host }.to_owned(),
        port: u16::try_from(port).ok()?,
    })
}

fn no_map(error: &ServerError, asked: &Address) -> Failure {
    let shown = asked.shown();
    if errors::details_of(error).contains("cluster support disabled") {
        return Failure::invalid(format!(
            "{shown} is not a node of a cluster: use a `redis://` url"
        ));
    }
    if error.code() == "NOPERM" {
        return errors::denied(format!(
            "this user of {shown} may not run `CLUSTER SLOTS`, which lists the nodes: grant it `+cluster|slots`"
        ));
    }
    errors::refused(error, asked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::transport::{
        address::{security::Security, url::ServerUrl},
        reply,
    };

    fn asked() -> Address {
        let url = ServerUrl::parse("redis://seed:7000").expect("whole");
        Address::of(&url, &Security::default()).expect("whole")
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let owner = Value::Array(vec![host, Value::Int(port), Value::Nil]);
        Value::Array(vec![Value::Int(first), Value::Int(last), owner])
    }

    fn name(name: &str) -> Value {
        Value::BulkString(name.as_bytes().to_vec())
    }

    #[test]
    fn a_map_is_read_and_a_missing_host_is_the_one_that_was_asked() {
        let reply = Value::Array(vec![
            range(0, 5, name("a"), 1),
            range(6, 16_383, Value::Nil, 2),
            range(7, 7, name("?"), 3),
        ]);
        let ranges = read_ranges(&reply, &asked()).expect("whole");
        let read: Vec<_> = ranges
            .iter()
            .map(|range| (range.first, range.last, &*range.host, range.port))
            .collect();
        assert_eq!(
            read,
            [(0, 5, "a", 1), (6, 16_383, "seed", 2), (7, 7, "seed", 3)]
        );
    }

    #[test]
    fn a_malformed_map_is_refused() {
        for odd in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 16_384, name("a"), 1)]),
            Value::Array(vec![range(-1, 1, name("a"), 1)]),
            Value::Array(vec![range(0, 1, name("a"), 70_000)]),
            Value::Array(vec![range(0, 1, Value::Int(1), 1)]),
        ] {
            assert!(read_ranges(&odd, &asked()).is_err(), "{odd:?}");
        }
        let disabled = reply::error("ERR This instance has cluster support disabled");
        let refused = read_ranges(&Value::ServerError(disabled), &asked());
        assert!(matches!(refused, Err(Failure::Invalid(_))), "{refused:?}");
    }
}
