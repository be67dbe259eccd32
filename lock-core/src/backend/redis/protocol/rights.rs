//! The rights that locks need, as the line that grants them. It is made only after a refusal.
//!
//! The line depends on the deployment and on the server's version alone. It grants all that locks need there, since granting a right
//! twice does no harm. There is one exception: a server refuses a pattern for a user that has all keys, or all channels, already. So
//! the words are in a selector, which is independent of the user's other rights. In two cases they are not, and the message says what
//! to do. A server before Redis 7 has no selectors. And if the line does not grant all keys under the prefix, locks need the user's
//! own patterns, too. A selector excludes those: all keys of one command must be in one selector.
//!
//! Rejected: to list all that is missing, and to find out which patterns the user has. That took 300 lines, for a shorter line.

use std::{sync::Arc, time::Duration};

use redis::Value;

use crate::{
    backend::redis::{
        protocol::redis_store::RedisStore,
        topology::{companions::GRANTS, key_location::KeyLocation},
        transport::{command::Arg::Text, errors, reconnecting::ReconnectingConnection, reply},
    },
    failure::Failure,
    options::RESERVED,
};

/// In the order of `docs/operations.md`.
const SCRIPTS: &str = "+ping +eval +evalsha +info +time +get +mget +set +xadd +exists +pttl +pexpire +del +zadd +zrange +zrem +zcard \
                       +zpopmin +zscore +zremrangebyscore +zcount +zrangebyscore +zrevrange +pexpireat";
const COMMANDS: &str = "+ping +info +time +get +set +xadd +pttl +del +pexpire +watch +multi +exec";

/// Extends a failure for lack of rights by the line that grants them.
pub(crate) async fn explained(
    store: &RedisStore,
    location: &KeyLocation,
    failure: Failure,
    within: Duration,
) -> Failure {
    let Some(reason) = errors::lack_of_rights(&failure) else {
        return failure;
    };
    let connection = &location.server.connection;
    let known = connection.snapshot().and_then(|now| now.capabilities);
    let scripts = line(store, location, true, within).await;
    let (reason, lines) = match known {
        Some(known) if !known.scripts && !store.0.is_one_of_several => {
            let commands = line(store, location, false, within).await;
            (
                format!("neither `+eval +evalsha`, nor what locks without scripts need: {reason}"),
                format!("{scripts}, or without scripts by {commands}"),
            )
        }
        _ => (reason.to_owned(), scripts),
    };
    let shown = connection.address().shown();
    Failure::invalid(format!(
        "this user of {shown} may not do all that locks need ({reason}): an administrator of the server grants it by {lines}"
    ))
}

/// The warning where scripts cannot be run: what that costs, and the line that grants a user the right to them.
pub(crate) async fn without_scripts(
    store: &RedisStore,
    location: &KeyLocation,
    within: Duration,
) -> String {
    let pause = store.0.timing.polling_pause;
    let line = line(store, location, true, within).await;
    format!(
        "`EVAL` and `EVALSHA` cannot both be used, so there is no queue: waiters poll, about every {pause:?} each, and are served in \
         no order; unless the server itself does not have these commands, its administrator grants what a queue takes by {line}"
    )
}

/// The line that grants all that locks need, and what to do if the server refuses it.
async fn line(
    store: &RedisStore,
    location: &KeyLocation,
    scripts: bool,
    within: Duration,
) -> String {
    let connection = &location.server.connection;
    let asked = if connection.is_up() {
        connection.clone()
    } else {
        connection.for_rights()
    };
    let greeting = asked.greeting(within).await;
    let is_old = greeting.is_before(7);
    let several = store.0.servers.are_several();
    // The keys under the prefix, or the one that stands for them.
    let (pattern, are_all) = match (&store.0.scope.check_key, &*store.0.scope.prefix) {
        (Some(key), _) => (Some(format!("~{}", literally(key))), false),
        (None, "") => (None, false),
        (None, prefix) => (Some(format!("~{}*", literally(prefix))), true),
    };
    let (own, channels) = (format!("~{RESERVED}*"), format!("&{GRANTS}*"));
    let words = [
        (pattern.as_deref(), true),
        (Some(&*own), true),
        (Some(SCRIPTS), scripts),
        (Some(COMMANDS), !scripts),
        (Some("+select"), connection.address().database() != 0),
        (Some("+role"), connection.sentinels().is_some()),
        (Some("+wait"), location.server.replica_acks.is_some()),
        (Some("+cluster|slots +asking"), several),
        // Before Redis 7 there are no channels of a slot.
        (Some(&*channels), scripts && !(several && is_old)),
        (Some("+subscribe +publish"), scripts && !several),
        (Some("+ssubscribe +spublish"), scripts && several && !is_old),
    ];
    let words = words
        .iter()
        .filter_map(|(word, is_needed)| word.filter(|_| *is_needed));
    let words = words.collect::<Vec<_>>().join(" ");
    let name = name(&asked, within).await;
    if are_all && !is_old {
        format!("`ACL SETUSER {name} ( {words} )`")
    } else {
        format!(
            "`ACL SETUSER {name} {words}` (leave out a pattern that the server refuses: the user has all keys, or all channels, \
             already)"
        )
    }
}

/// The user's name on the server, or that of the url, if the user may not ask for it.
async fn name(connection: &Arc<ReconnectingConnection>, within: Duration) -> String {
    let words = [Text("ACL"), Text("WHOAMI")];
    let reply = connection.send(&[&words], within, None).await;
    let name = reply
        .ok()
        .and_then(|(_, name)| Some(reply::text(&name)?.to_owned()));
    name.unwrap_or_else(|| connection.address().user().unwrap_or("default").to_owned())
}

/// The failure of a list for lack of the right to scan, which locks do not need. `None` if the reply is no such refusal.
pub(crate) async fn without_scan(
    connection: &Arc<ReconnectingConnection>,
    reply: &Value,
    within: Duration,
) -> Option<Failure> {
    if !matches!(reply, Value::ServerError(error) if error.code() == "NOPERM") {
        return None;
    }
    Some(Failure::invalid(format!(
        "this user of {} may not list locks: an administrator of the server grants it by `ACL SETUSER {} +scan`",
        connection.address().shown(),
        name(connection, within).await
    )))
}

/// A text as a pattern that matches it, in one word of a line: a character that would split the word becomes `?`.
pub(crate) fn literally(text: &str) -> String {
    let mut pattern = String::new();
    for c in text.chars() {
        match c {
            '*' | '?' | '[' | ']' | '\\' => pattern.extend(['\\', c]),
            '"' | '\'' => pattern.push('?'),
            // A `?` matches one byte.
            c if c.is_whitespace() || c.is_control() => {
                pattern.extend(std::iter::repeat_n('?', c.len_utf8()));
            }
            c => pattern.push(c),
        }
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_granted_as_one_word_that_means_itself() {
        assert_eq!(literally("lock:"), "lock:");
        assert_eq!(literally(r"a*b?[c]\"), r"a\*b\?\[c\]\\");
        assert_eq!(literally("a b\"c\nü\u{3000}"), "a?b?c?ü???");
    }
}
