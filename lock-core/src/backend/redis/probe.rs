//! What this server lets this user do: found out by doing it, once a connection, and never from a version.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{
        Failure,
        redis::{
            address::Address,
            failure,
            link::Link,
            opening::Opening,
            resp::{ServerError, Value, Word},
        },
    },
    options::RESERVED,
};

/// By which commands locks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ways {
    /// Scripts: everything works.
    Scripts,
    /// Commands alone: waiters ask again and again.
    Commands(Compare),
}

/// By which commands a key is changed only if it holds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compare {
    /// `DELEX … IFEQ` and `SET … IFEQ`: Redis 8.4 and later.
    Delex,
    /// `DELIFEQ` and `SET … IFEQ`: Valkey 9 and later.
    Delifeq,
    /// `WATCH`, `MULTI` and `EXEC`, on a connection of their own.
    Watch,
}

/// Tells in one call whether scripts may run and may publish.
const PUBLISH: &str = "return redis.pcall('PUBLISH', ARGV[1], '')";

/// Tells whether scripts may run.
const NOTHING: &str = "return 1";

/// In a cluster, whether they may publish can be tried only with a channel of the node's own slots.
const SPUBLISH: &str = "return redis.pcall('SPUBLISH', ARGV[1], '')";

/// Makes sure that scripts may publish on a channel of a node of a cluster. One that is too old for that has none.
pub(super) async fn publishing(
    link: &Arc<Link>,
    channel: &str,
    within: Duration,
) -> Result<(), Failure> {
    let eval = [
        Word::Text("EVAL"),
        Word::Text(SPUBLISH),
        Word::Number(0),
        Word::Text(channel),
    ];
    match link.send(&[&eval], within, None).await? {
        (_, Value::ServerError(error)) if is_inside_the_script(&error) && is_a_right(&error) => {
            Err(may_not_publish(link.address(), "spublish"))
        }
        _ => Ok(()),
    }
}

/// Whether what is missing is a right, and not the command itself.
fn is_a_right(error: &ServerError) -> bool {
    error.code() == "NOPERM" || error.details().contains("permissions")
}

/// `channel`: where grants will be published, if that can be tried on this connection.
pub(super) async fn ways(
    opening: &Opening,
    address: &Address,
    channel: Option<&str>,
) -> Result<Ways, Failure> {
    let script = [
        Word::Text("EVAL"),
        Word::Text(channel.map_or(NOTHING, |_| PUBLISH)),
        Word::Number(0),
        Word::Text(channel.unwrap_or_default()),
    ];
    match opening.ask(address, &script).await? {
        Value::ServerError(error) if is_inside_the_script(&error) => {
            Err(may_not_publish(address, "publish"))
        }
        Value::ServerError(error) if may_not(&error) => compare(opening, address).await,
        Value::ServerError(error) => Err(failure::refused(&error, address)),
        // What no server answers is found out by the first lock.
        _ => Ok(Ways::Scripts),
    }
}

async fn compare(opening: &Opening, address: &Address) -> Result<Ways, Failure> {
    // A key that is not there: nothing is changed.
    let key = Word::Joined(RESERVED, "probe");
    let set = [
        Word::Text("SET"),
        key,
        Word::Text("1"),
        Word::Text("IFEQ"),
        Word::Text("0"),
        Word::Text("PX"),
        Word::Number(100),
    ];
    let delex = [
        Word::Text("DELEX"),
        key,
        Word::Text("IFEQ"),
        Word::Text("0"),
    ];
    let delifeq = [Word::Text("DELIFEQ"), key, Word::Text("0")];
    let watch = [Word::Text("WATCH"), key];
    if works(opening, address, &set).await? {
        if works(opening, address, &delex).await? {
            return Ok(Ways::Commands(Compare::Delex));
        }
        if works(opening, address, &delifeq).await? {
            return Ok(Ways::Commands(Compare::Delifeq));
        }
    }
    let transaction = works(opening, address, &watch).await?
        && works(opening, address, &[Word::Text("MULTI")]).await?
        && works(opening, address, &[Word::Text("EXEC")]).await?;
    if transaction {
        return Ok(Ways::Commands(Compare::Watch));
    }
    Err(Failure::Invalid(
        format!(
            "this user of {} may neither run scripts (`+eval +evalsha`), nor `DELEX` or `DELIFEQ` with `SET … IFEQ`, nor \
             `WATCH`, `MULTI` and `EXEC`: grant one of them",
            address.shown()
        )
        .into(),
    ))
}

async fn works(opening: &Opening, address: &Address, words: &[Word<'_>]) -> Result<bool, Failure> {
    match opening.ask(address, words).await? {
        Value::ServerError(error) => match failure::refused(&error, address) {
            Failure::NotNow(source) => Err(Failure::NotNow(source)),
            _ => Ok(false),
        },
        _ => Ok(true),
    }
}

/// Whether the server refuses the command itself, to this user or to everybody.
fn may_not(error: &ServerError) -> bool {
    error.code() == "NOPERM" || error.details().contains("unknown command")
}

/// The scripts may run, but not what is in this one.
fn is_inside_the_script(error: &ServerError) -> bool {
    let details = error.details();
    details.contains("executing the script") || details.contains("in script")
}

fn may_not_publish(address: &Address, command: &str) -> Failure {
    Failure::Invalid(
        format!(
            "this user of {} may not publish, by which waiters are told that a lock is theirs: grant it \
             `+{command} &{RESERVED}*`",
            address.shown()
        )
        .into(),
    )
}
