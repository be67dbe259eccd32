//! The list of the locks on a server, a page at a time.
//!
//! A server has no index of its locks, since that would cost each acquire a command. The list is made by a `SCAN` of all keys.

use std::{sync::Arc, time::Duration};

use redis::Value;

use crate::{
    backend::{
        Cursor, Page, PagePosition,
        in_flight::ConnectionId,
        redis::{
            protocol::redis_store::RedisStore,
            transport::{command::Arg::Text, errors, reconnecting::ReconnectingConnection, reply},
        },
    },
    failure::Failure,
    options::RESERVED,
    runtime::together::together,
};

/// The approximate number of keys that the server inspects for one page. Between pages it answers other clients.
const LOOKED_AT: &str = "100";

/// Returns a page of locks. `SCAN` returns a key at least once if it exists during the whole scan. Keys that are added or deleted
/// meanwhile may be returned or not. Each server process has its own order of keys, so a cursor is only valid on its connection,
/// and on another one the list starts over.
///
/// The servers of a cluster are identified by their addresses, since their number and order may change. A slot that moves
/// meanwhile may be missed, or listed twice.
pub(crate) async fn page(
    store: &RedisStore,
    full_prefix: &str,
    from: PagePosition,
) -> Result<Page, Failure> {
    let mut left = store.0.servers.each().into_iter().filter(|location| {
        let address = location.server.connection.address().shown();
        !from.done.iter().any(|done| done == address)
    });
    let Some(location) = left.next() else {
        let (locks, next) = (Vec::new(), None);
        return Ok(Page { locks, next });
    };
    let is_last = left.next().is_none();
    let pattern = format!("{}*", literally(full_prefix));
    let (connection, within) = (&location.server.connection, store.within());
    if !location.capabilities(within).await?.forwards_all {
        // A proxy may close the connection at this command, too.
        let server = connection.address().shown();
        return Err(Failure::invalid(format!(
            "a proxy at {server} chooses a server by the key of each request, but a list has no key: list the locks of each server behind it"
        )));
    }
    let (mut id, mut reply) = scan(connection, from.cursor, &pattern, within).await?;
    if from.cursor.is_some_and(|cursor| cursor.connection != id) {
        (id, reply) = scan(connection, None, &pattern, within).await?;
    }
    // Locks do not need this right, so it was not tested while connecting.
    if matches!(&reply, Value::ServerError(error) if error.code() == "NOPERM") {
        return Err(Failure::invalid(format!(
            "this user of {} may not list locks: grant it `+scan`",
            connection.address().shown()
        )));
    }
    let reply = errors::of_value(reply)?;
    let (number, keys) = read(&reply).ok_or_else(|| errors::nonsense("a SCAN"))?;
    let keys: Vec<String> = keys
        .into_iter()
        .filter(|key| key.starts_with(full_prefix) && !key.starts_with(RESERVED))
        .collect();
    // The number of keys is bounded by a page.
    let seen = keys.iter().map(|key| store.look_at(key.as_str().into(), 0));
    let seen = together(seen).await;
    let mut locks = Vec::with_capacity(keys.len());
    for (key, seen) in keys.into_iter().zip(seen) {
        match seen {
            Ok(Some(sighting)) => locks.push((key, sighting)),
            // The lock was released in the meantime, or the key holds something else by now.
            Ok(None) | Err(Failure::Invalid(_)) => {}
            Err(failure) => return Err(failure),
        }
    }
    let next = match number {
        0 if is_last => None,
        0 => {
            let mut done = from.done;
            done.push(connection.address().shown().to_owned());
            Some(PagePosition { done, cursor: None })
        }
        number => Some(PagePosition {
            cursor: Some(Cursor {
                number,
                connection: id,
            }),
            done: from.done,
        }),
    };
    Ok(Page { locks, next })
}

async fn scan(
    connection: &Arc<ReconnectingConnection>,
    from: Option<Cursor>,
    pattern: &str,
    within: Duration,
) -> Result<(ConnectionId, Value), Failure> {
    let number = from.map_or(0, |cursor| cursor.number).to_string();
    // Keys of other types are not locks. Strings that are not locks cannot be distinguished from the locks of other libraries.
    let words = [
        "SCAN", &number, "MATCH", pattern, "COUNT", LOOKED_AT, "TYPE", "string",
    ];
    connection.send(&[&words.map(Text)], within, None).await
}

/// Returns a pattern that matches only this text.
fn literally(text: &str) -> String {
    let mut pattern = String::new();
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

fn read(reply: &Value) -> Option<(u64, Vec<String>)> {
    let [cursor, Value::Array(keys)] = reply.as_sequence()? else {
        return None;
    };
    // A key that is not valid UTF-8 was not created by this library.
    let keys = keys.iter().filter_map(reply::text).map(str::to_owned);
    Some((reply::text(cursor)?.parse().ok()?, keys.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_of_the_wrong_form_is_rejected() {
        let text = |text: &str| Value::BulkString(text.into());
        let keys = Value::Array(vec![text("a"), Value::BulkString(vec![0xff]), text("b")]);
        let good = Value::Array(vec![text("17"), keys.clone()]);
        assert_eq!(
            read(&good),
            Some((17, vec!["a".to_owned(), "b".to_owned()]))
        );
        for bad in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![text("x"), keys.clone()]),
            Value::Array(vec![text("1"), Value::Nil]),
        ] {
            assert_eq!(read(&bad), None, "{bad:?}");
        }
    }
}
