//! What this server lets this user do: found out by trying, once a connection, and never from a version.

use redis::{ServerError, Value};

use crate::{
    options::RESERVED,
    store::{
        Failure,
        redis::{
            address::Address,
            connection::{
                capabilities::{Capabilities, Compare},
                errors,
                handshake::Handshake,
                wire::{command::Arg, reply},
            },
        },
    },
};

/// Finds out in one call whether scripts may run, and which of the commands that they call are refused to them.
const PROBE: &str = include_str!("../scripts/probe.lua");

/// `channel`: where grants will be published, if that can be tried on this connection.
pub(crate) async fn capabilities(
    handshake: &Handshake,
    address: &Address,
    channel: Option<&str>,
) -> Result<Capabilities, Failure> {
    let probe = [
        Arg::Text("EVAL"),
        Arg::Text(PROBE),
        Arg::Number(0),
        Arg::Joined(RESERVED, "probe"),
        Arg::Text(channel.unwrap_or_default()),
    ];
    match handshake.ask(address, &probe).await? {
        Value::ServerError(error) if may_not(&error) => compare(handshake, address).await,
        Value::ServerError(error) => Err(errors::refused(&error, address)),
        Value::Array(missing) => {
            let names = missing.iter().filter_map(reply::text);
            expect_all(address, Capabilities::Scripts, names)
        }
        // Other replies are unknown from any server; the first lock finds out.
        _ => Ok(Capabilities::Scripts),
    }
}

/// An error that names the rights to commands that are missing, if there are any.
pub(crate) fn expect_all<'a>(
    address: &Address,
    wanted: Capabilities,
    missing: impl Iterator<Item = &'a str>,
) -> Result<Capabilities, Failure> {
    let rights: Vec<String> = missing
        .map(|command| match command {
            "publish" | "spublish" => format!("+{command} &{RESERVED}grants:*"),
            "time" | "evalsha" | "discard" | "unwatch" => format!("+{command}"),
            // Refused because of its key, or the command itself: not every server says which.
            _ => format!("+{command} ~{RESERVED}*"),
        })
        .collect();
    if rights.is_empty() {
        return Ok(wanted);
    }
    let (rights, server) = (rights.join(" "), address.shown());
    Err(errors::denied_for(
        wanted,
        format!("{server} does not let this user do `{rights}`"),
    ))
}

async fn compare(handshake: &Handshake, address: &Address) -> Result<Capabilities, Failure> {
    let by = comparison(handshake, address).await?;
    others(handshake, address, by).await
}

async fn comparison(handshake: &Handshake, address: &Address) -> Result<Compare, Failure> {
    // A key that does not exist: nothing is changed.
    let key = Arg::Joined(RESERVED, "probe");
    let set = [
        Arg::Text("SET"),
        key,
        Arg::Text("1"),
        Arg::Text("IFEQ"),
        Arg::Text("0"),
        Arg::Text("PX"),
        Arg::Number(100),
    ];
    let delex = [Arg::Text("DELEX"), key, Arg::Text("IFEQ"), Arg::Text("0")];
    let delifeq = [Arg::Text("DELIFEQ"), key, Arg::Text("0")];
    let watch = [Arg::Text("WATCH"), key];
    if works(handshake, address, &set).await? {
        if works(handshake, address, &delex).await? {
            return Ok(Compare::Delex);
        }
        if works(handshake, address, &delifeq).await? {
            return Ok(Compare::Delifeq);
        }
    }
    let mut transaction = 0;
    for words in [&watch[..], &[Arg::Text("MULTI")], &[Arg::Text("EXEC")]] {
        transaction += usize::from(works(handshake, address, words).await?);
    }
    // A user with some of the commands is meant to have them. To all others a queue is worth the longer line.
    let wanted = match transaction {
        3 => return Ok(Compare::Watch),
        0 => Capabilities::Scripts,
        _ => Capabilities::Commands(Compare::Watch),
    };
    let reason = format!(
        "this user of {} may neither run scripts (`+eval +evalsha`), nor `DELEX` or `DELIFEQ` with `SET … IFEQ`, nor \
         `WATCH`, `MULTI` and `EXEC`: grant one of them, and the keys `~{RESERVED}*`",
        address.shown()
    );
    Err(errors::denied_for(wanted, reason))
}

/// Checks the other commands that a lock needs: each is refused before anything is done, or harmless.
async fn others(
    handshake: &Handshake,
    address: &Address,
    by: Compare,
) -> Result<Capabilities, Failure> {
    let key = Arg::Joined(RESERVED, "probe");
    let expiry = Arg::Number(100);
    let all: [(&str, &[Arg<'_>]); 8] = [
        ("set", &[key, Arg::Text("0"), Arg::Text("PX"), expiry]),
        ("get", &[key]),
        ("pttl", &[key]),
        ("time", &[]),
        // For transactions only.
        ("pexpire", &[key, expiry]),
        ("del", &[key]),
        ("discard", &[]),
        ("unwatch", &[]),
    ];
    let needed = if by == Compare::Watch { 8 } else { 4 };
    let commands: Vec<Vec<Arg<'_>>> = all[..needed]
        .iter()
        .map(|(name, rest)| [&[Arg::Text(name)], *rest].concat())
        .collect();
    let commands: Vec<&[Arg<'_>]> = commands.iter().map(Vec::as_slice).collect();
    let answers = handshake.ask_all(address, &commands).await?;
    let missing = all.iter().zip(&answers).filter_map(|((name, _), answer)| {
        let refused = matches!(answer, Value::ServerError(error) if may_not(error));
        refused.then_some(*name)
    });
    expect_all(address, Capabilities::Commands(by), missing)
}

async fn works(
    handshake: &Handshake,
    address: &Address,
    words: &[Arg<'_>],
) -> Result<bool, Failure> {
    match handshake.ask(address, words).await? {
        // A node of a cluster checks the command and the right to it before it checks which node has the key.
        Value::ServerError(error) if matches!(error.code(), "MOVED" | "ASK") => Ok(true),
        // So it does before it checks the right to the key, which the other commands lack, too.
        Value::ServerError(error)
            if error.code() == "NOPERM" && errors::details_of(&error).contains("access") =>
        {
            Ok(true)
        }
        Value::ServerError(error) => match errors::refused(&error, address) {
            Failure::NotNow(source) => Err(Failure::NotNow(source)),
            _ => Ok(false),
        },
        _ => Ok(true),
    }
}

/// Whether the server refuses the command itself, to this user or to every user.
fn may_not(error: &ServerError) -> bool {
    error.code() == "NOPERM" || errors::details_of(error).contains("unknown command")
}
