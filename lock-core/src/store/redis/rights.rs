//! The rights that locks need, as the line that grants them. It is made only after a refusal.
//!
//! The line grants all that a deployment needs, since granting a right twice does no harm. There is one exception: a server refuses
//! a pattern for a user that has all keys, or all channels, already. So the words are in a selector, which is independent of the
//! user's other rights. Two cases are left. A server before Redis 7 has no selectors. And if the line does not grant all keys under
//! the prefix, locks need the user's own patterns, too. A selector excludes those: all keys of one command must be in one selector.
//! In both cases, random names are tried to find out whether the user has all keys, and all channels.

use std::{sync::Arc, time::Duration};

use redis::Value;

use crate::{
    inspect::{Topic, Warning},
    options::RESERVED,
    store::{
        Failure,
        owner_token::random_name,
        redis::{
            connection::{
                capabilities::{Capabilities, Compare},
                errors::{self, Denied},
                pub_sub::GRANTS,
                reconnecting::ReconnectingConnection,
                wire::command::{
                    Arg::{self, Text},
                    command, pipeline,
                },
            },
            topology::key_location::KeyLocation,
        },
    },
};

/// Which keys locks have, and which of them stands for all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    pub(crate) prefix: String,
    /// Includes the prefix.
    pub(crate) check_key: Option<String>,
}

/// How locks use their servers.
#[derive(Clone, Debug)]
pub(crate) struct Usage {
    pub(crate) scope: Scope,
    /// Whether the server is one of several that vote: by scripts only, and without grants.
    pub(crate) is_one_of_several: bool,
    /// Whether the servers are those of a cluster.
    pub(crate) are_several: bool,
    pub(crate) polling_pause: Duration,
}

/// Stands between the prefix and the name of a lock that is only tried.
pub(super) const CHECK: &str = "__check__:";

impl Scope {
    /// The warning if no key stands for those of the locks.
    pub(crate) fn warning(&self) -> Option<Warning> {
        let is_unknown = self.prefix.is_empty() && self.check_key.is_none();
        is_unknown.then(|| {
            Topic::Rights.warning(
                "the key prefix is empty, so whether this user may use the keys of its locks was not tried: name one of them by \
                 the builder's `check_key`",
            )
        })
    }

    /// Whether locks may have all keys with the prefix.
    fn is_a_prefix(&self) -> bool {
        self.check_key.is_none() && !self.prefix.is_empty()
    }

    /// The key pattern that a user is granted for locks: the keys under the prefix, or the one that stands for them.
    fn pattern(&self) -> Option<String> {
        match &self.check_key {
            Some(key) => Some(format!("~{}", literally(key))),
            None if self.prefix.is_empty() => None,
            None => Some(format!("~{}*", literally(&self.prefix))),
        }
    }
}

/// In the order of `docs/operations.md`.
const SCRIPTS: &str = "+ping +eval +evalsha +info +time +get +set +xadd +exists +pttl +pexpire +del +zadd +zrange +zrem +zcard \
                       +zpopmin +zscore +zremrangebyscore +zmscore +zcount +zrangebyscore +zrevrange +pexpireat";
const COMMANDS: &str = "+ping +info +time +get +set +xadd +pttl +del";

/// Extends a failure for lack of rights by the line that grants them.
pub(super) async fn explained(
    usage: &Usage,
    location: &KeyLocation,
    failure: Failure,
    within: Duration,
) -> Failure {
    let Some(Denied { reason, wanted }) = errors::lack_of_rights(&failure) else {
        return failure;
    };
    let connection = &location.server.connection;
    let known = connection.snapshot().and_then(|now| now.capabilities);
    let wanted = match (wanted, known) {
        _ if usage.is_one_of_several => Capabilities::Scripts,
        (Capabilities::Scripts, Some(known)) => known,
        _ => *wanted,
    };
    let line = line(usage, location, wanted, within).await;
    let shown = connection.address().shown();
    Failure::Invalid(
        format!(
            "this user of {shown} may not do all that locks need ({reason}): an administrator of the server grants it by `{line}`"
        )
        .into(),
    )
}

/// The warning for a user without the right to run scripts: what is missing, and the line that grants it.
pub(super) async fn without_scripts(
    usage: &Usage,
    location: &KeyLocation,
    within: Duration,
) -> String {
    let pause = usage.polling_pause;
    let line = line(usage, location, Capabilities::Scripts, within).await;
    format!(
        "this user may not run scripts, so there is no queue: waiters poll, about every {pause:?} each, and are served in no order; \
         an administrator of the server grants what a queue takes by `{line}`"
    )
}

/// The line that grants all that locks need.
async fn line(
    usage: &Usage,
    location: &KeyLocation,
    wanted: Capabilities,
    within: Duration,
) -> String {
    let connection = &location.server.connection;
    let connection = if connection.is_up() {
        connection.clone()
    } else {
        connection.for_rights()
    };
    let asked = Account::find_out(&connection, &usage.scope, within);
    let account = tokio::time::timeout(within, asked).await;
    let account = account.unwrap_or_default();
    let mut words = Vec::new();
    if !account.has_all_keys {
        words.extend(usage.scope.pattern());
        words.push(format!("~{RESERVED}*"));
    }
    words.push(commands(usage, location, wanted));
    let delivery = match (wanted, usage.are_several) {
        (Capabilities::Commands(_), _) => None,
        (Capabilities::Scripts, false) => Some("+subscribe +publish"),
        // Before Redis 7 there are no channels of a slot.
        (Capabilities::Scripts, true) => (!account.is_old).then_some("+ssubscribe +spublish"),
    };
    let in_a_selector = |words: &[String]| format!("( {} )", words.join(" "));
    if let Some(delivery) = delivery {
        let channel = (!account.has_all_channels).then(|| format!("&{GRANTS}*"));
        let delivery: Vec<_> = channel.into_iter().chain([delivery.to_owned()]).collect();
        if account.is_old || usage.scope.is_a_prefix() {
            words.extend(delivery);
        } else {
            words.push(in_a_selector(&delivery));
        }
    }
    let words = if usage.scope.is_a_prefix() && !account.is_old {
        in_a_selector(&words)
    } else {
        words.join(" ")
    };
    let name = account.name.as_deref().or(connection.address().user());
    format!("ACL SETUSER {} {words}", name.unwrap_or("default"))
}

/// What is known of a user, as far as the form of the line depends on it.
#[derive(Default)]
struct Account {
    /// The user's name on the server, if the user may ask for it.
    name: Option<String>,
    /// Whether the server has no selectors: before Redis 7.
    is_old: bool,
    has_all_keys: bool,
    /// Without selectors.
    has_all_channels: bool,
}

impl Account {
    async fn find_out(
        connection: &Arc<ReconnectingConnection>,
        scope: &Scope,
        within: Duration,
    ) -> Self {
        let mut account = Self {
            name: name(connection, within).await,
            is_old: connection.greeting(within).await.is_before(7),
            ..Self::default()
        };
        if scope.is_a_prefix() && !account.is_old {
            return account;
        }
        // Random names: only a user with all keys, or all channels, may use them. Nothing is changed.
        let name = random_name();
        let words: [&[Arg<'_>]; 4] = [
            &[Text("GET"), Text(&name)],
            &[Text("PTTL"), Text(&name)],
            &[Text("DEL"), Text(&name)],
            &[Text("PUBLISH"), Text(&name), Text("")],
        ];
        let tried = pipeline(words.map(|words| command(&[words])));
        if let Ok((_, answers)) = connection.send_all(tried, within, None).await
            && let [keys @ .., channel] = &answers[..]
        {
            account.has_all_keys = keys.iter().any(|answer| refusal(answer).is_none());
            // A refusal of the command itself says nothing about channels: before Redis 7 a new user has all channels, and no keys.
            account.has_all_channels = account.is_old
                && refusal(channel).is_none_or(|details| !details.contains("channel"));
        }
        account
    }
}

/// The user's name on the server, if the user may ask for it.
async fn name(connection: &Arc<ReconnectingConnection>, within: Duration) -> Option<String> {
    let words = [Text("ACL"), Text("WHOAMI")];
    match connection.send(&[&words], within, None).await {
        Ok((_, Value::BulkString(name))) => String::from_utf8(name).ok(),
        _ => None,
    }
}

/// The failure of a list for lack of the right to scan, which locks do not need. `None` if the answer is no such refusal.
pub(super) async fn without_scan(
    connection: &Arc<ReconnectingConnection>,
    answer: &Value,
    within: Duration,
) -> Option<Failure> {
    refusal(answer)?;
    let name = name(connection, within).await;
    let name = name.as_deref().or(connection.address().user());
    Some(Failure::invalid(format!(
        "this user of {} may not list locks: an administrator of the server grants it by `ACL SETUSER {} +scan`",
        connection.address().shown(),
        name.unwrap_or("default")
    )))
}

/// The details of a refusal for lack of rights.
fn refusal(answer: &Value) -> Option<&str> {
    match answer {
        Value::ServerError(error) if error.code() == "NOPERM" => Some(errors::details_of(error)),
        _ => None,
    }
}

/// The commands to grant, without those for messages.
fn commands(usage: &Usage, location: &KeyLocation, wanted: Capabilities) -> String {
    let connection = &location.server.connection;
    let all = match wanted {
        Capabilities::Scripts => SCRIPTS.to_owned(),
        Capabilities::Commands(Compare::Delifeq) => format!("{COMMANDS} +delifeq"),
        Capabilities::Commands(Compare::Watch) => {
            format!("{COMMANDS} +pexpire +watch +unwatch +multi +exec +discard")
        }
    };
    let of_the_deployment = [
        (" +select", connection.address().database() != 0),
        (" +role", connection.sentinels().is_some()),
        (" +wait", location.server.replica_acks.is_some()),
        (" +cluster|slots +asking", usage.are_several),
    ];
    let needed = of_the_deployment
        .into_iter()
        .filter(|(_, is_needed)| *is_needed);
    needed.fold(all, |all, (command, _)| all + command)
}

/// A text as a pattern that matches it, in one word of a line: a character that would split the word becomes `?`.
fn literally(text: &str) -> String {
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
