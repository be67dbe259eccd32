//! What this server lets this user do. Each connection tries it once; the server's version does not count.

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
                handshake::CurrentConnection,
                wire::{
                    command::Arg::{self, Text},
                    reply,
                },
            },
        },
    },
};

/// Finds out in one call whether scripts may run, and which of the commands that they call the server refuses.
const PROBE: &str = include_str!("../scripts/probe.lua");

/// `channel`: where grants will be published, if that can be tried on this connection.
pub(super) async fn capabilities(
    current: &CurrentConnection,
    channel: Option<&str>,
) -> Result<Capabilities, Failure> {
    let probe = [
        Text("EVAL"),
        Text(PROBE),
        Arg::Number(0),
        Arg::Joined(RESERVED, "probe"),
        Text(channel.unwrap_or_default()),
    ];
    match current.ask(&probe).await? {
        Value::ServerError(error) if may_not(&error) => {
            let by = comparison(current).await?;
            others(current, by).await
        }
        Value::ServerError(error) => Err(errors::refused(&error, &current.address)),
        Value::Array(missing) => {
            let names = missing.iter().filter_map(reply::text);
            expect_all(&current.address, Capabilities::Scripts, names)
        }
        // No known server sends another reply. The first lock then shows whether scripts work.
        _ => Ok(Capabilities::Scripts),
    }
}

/// Returns an error that names the missing rights to commands, if there are any.
pub(crate) fn expect_all<'a>(
    address: &Address,
    wanted: Capabilities,
    missing: impl Iterator<Item = &'a str>,
) -> Result<Capabilities, Failure> {
    let rights: Vec<String> = missing
        .map(|command| match command {
            "publish" | "spublish" => format!("+{command} &{RESERVED}grants:*"),
            "time" | "evalsha" | "discard" | "unwatch" => format!("+{command}"),
            // The server refuses the command or its key: not every server says which of the two.
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

async fn comparison(current: &CurrentConnection) -> Result<Compare, Failure> {
    // A key that does not exist: nothing is changed.
    let (key, ifeq, value) = (Arg::Joined(RESERVED, "probe"), Text("IFEQ"), Text("0"));
    let set = [
        Text("SET"),
        key,
        Text("1"),
        ifeq,
        value,
        Text("PX"),
        Arg::Number(100),
    ];
    let delifeq = [Text("DELIFEQ"), key, value];
    // One after the other: a server without the first command is not to execute the second.
    if tried(current, &[&delifeq]).await? == [true] && tried(current, &[&set]).await? == [true] {
        return Ok(Compare::Delifeq);
    }
    // Last, since a transaction that cannot be ended stays open.
    let transaction: [&[_]; 3] = [&[Text("WATCH"), key], &[Text("MULTI")], &[Text("EXEC")]];
    let works = tried(current, &transaction).await?;
    // A user with some of these rights is probably meant to have all. Other users are advised to allow scripts: they need more
    // rights, but have a queue.
    let wanted = match works.iter().filter(|works| **works).count() {
        3 => return Ok(Compare::Watch),
        0 => Capabilities::Scripts,
        _ => Capabilities::Commands(Compare::Watch),
    };
    let reason = format!(
        "this user of {} may neither run scripts (`+eval +evalsha`), nor `DELIFEQ` with `SET … IFEQ`, nor `WATCH`, `MULTI` and \
         `EXEC`: grant one of them, and the keys `~{RESERVED}*`",
        current.address.shown()
    );
    Err(errors::denied_for(wanted, reason))
}

/// Checks the other commands that a lock needs: each is refused before anything is done, or harmless.
async fn others(current: &CurrentConnection, by: Compare) -> Result<Capabilities, Failure> {
    let key = Arg::Joined(RESERVED, "probe");
    let expiry = Arg::Number(100);
    // Where there is no such key, none is made.
    let xadd = ["NOMKSTREAM", "MAXLEN", "0", "*", "", ""].map(Text);
    let xadd = [&[Text("xadd"), key], &xadd[..]].concat();
    let all: [&[Arg<'_>]; 9] = [
        &[Text("set"), key, Text("0"), Text("PX"), expiry],
        &[Text("get"), key],
        &[Text("pttl"), key],
        &[Text("time")],
        &xadd,
        // For transactions only.
        &[Text("pexpire"), key, expiry],
        &[Text("del"), key],
        &[Text("discard")],
        &[Text("unwatch")],
    ];
    let needed = if by == Compare::Watch { 9 } else { 5 };
    let answers = current.ask_all(&all[..needed]).await?;
    let missing = all.iter().zip(&answers).filter_map(|both| match both {
        ([Text(name), ..], Value::ServerError(error)) if may_not(error) => Some(*name),
        _ => None,
    });
    expect_all(&current.address, Capabilities::Commands(by), missing)
}

/// Which of these commands the server executes for this user.
async fn tried(current: &CurrentConnection, commands: &[&[Arg<'_>]]) -> Result<Vec<bool>, Failure> {
    let works = |answer: &Value| match answer {
        // A node of a cluster checks the command and the right to it before it checks which node has the key.
        Value::ServerError(error) if matches!(error.code(), "MOVED" | "ASK") => Ok(true),
        // The node also checks the command before the right to the key. `others` reports a missing right to the key.
        Value::ServerError(error)
            if error.code() == "NOPERM" && errors::details_of(error).contains("access") =>
        {
            Ok(true)
        }
        Value::ServerError(error) => match errors::refused(error, &current.address) {
            failure @ Failure::NotNow(_) => Err(failure),
            _ => Ok(false),
        },
        _ => Ok(true),
    };
    let answers = current.ask_all(commands).await?;
    answers.iter().map(works).collect()
}

/// Whether this user lacks a right to the command or its key, or the server does not have the command.
fn may_not(error: &ServerError) -> bool {
    error.code() == "NOPERM" || errors::details_of(error).contains("unknown command")
}
