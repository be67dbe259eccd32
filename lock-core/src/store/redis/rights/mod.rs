//! The rights that a user lacks for locks, named once, as the line that grants them. Found out only after a refusal.

use std::time::Duration;

use crate::{
    options::RESERVED,
    store::{
        Failure,
        owner_token::random_name,
        redis::{
            connection::{errors, pub_sub::GRANTS},
            rights::survey::{On, Reach, Survey},
            topology::key_location::KeyLocation,
        },
    },
};

mod survey;

/// Which keys locks have, and which of them stands for all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    pub(crate) prefix: String,
    /// With the prefix.
    pub(crate) check_key: Option<String>,
}

/// How locks use their servers.
#[derive(Clone, Debug)]
pub(crate) struct Usage {
    pub(crate) scope: Scope,
    /// Whether it is one of the servers that vote: by scripts only, and without grants.
    pub(crate) is_one_of_several: bool,
    /// Whether the servers are those of a cluster.
    pub(crate) are_several: bool,
    pub(crate) polling_pause: Duration,
}

/// Stands between the prefix and the name of a lock that is only tried.
pub(super) const CHECK: &str = "__check__:";

impl Scope {
    /// The warning if no key stands for those of the locks.
    pub(crate) fn warning(&self) -> Option<String> {
        let is_unknown = self.prefix.is_empty() && self.check_key.is_none();
        is_unknown.then(|| {
            "the key prefix is empty, so whether this user may use the keys of its locks was not tried: name one of them by the \
             builder's `check_key`"
                .to_owned()
        })
    }

    /// A key that stands for those of the locks.
    fn key(&self) -> Option<String> {
        let random = || format!("{}{CHECK}{}", self.prefix, random_name());
        let key = self.check_key.clone();
        key.or_else(|| (!self.prefix.is_empty()).then(random))
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

/// The purpose of the rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// Locks, by scripts or without them.
    Locks,
    Scripts,
}

/// In the order of the README.
const SCRIPTS: [&str; 23] = [
    "ping",
    "eval",
    "evalsha",
    "subscribe",
    "info",
    "time",
    "get",
    "set",
    "psetex",
    "exists",
    "incr",
    "pttl",
    "pexpire",
    "del",
    "publish",
    "lpop",
    "rpush",
    "linsert",
    "lrange",
    "lindex",
    "lset",
    "lrem",
    "llen",
];
const COMMANDS: [&str; 8] = ["ping", "info", "time", "get", "set", "incr", "pttl", "del"];

/// The commands that compare and delete without a script: one of these groups, if the server knows its first command.
const COMPARING: [&[&str]; 3] = [
    &["delex"],
    &["delifeq"],
    &["pexpire", "watch", "unwatch", "multi", "exec", "discard"],
];

/// Extends a failure for lack of rights by the names of all missing rights, as far as they are found out in time.
pub(super) async fn explained(
    usage: &Usage,
    location: &KeyLocation,
    failure: Failure,
    within: Duration,
) -> Failure {
    let Some(words) = errors::lack_of_rights(&failure) else {
        return failure;
    };
    let wanted = if usage.is_one_of_several {
        Wanted::Scripts
    } else {
        Wanted::Locks
    };
    let shown = location.server.connection.address().shown();
    Failure::Invalid(
        match missing(usage, location, wanted, within).await {
            Some(line) => format!(
                "this user of {shown} may not do all that locks need: an administrator of the server grants it by `{line}`"
            ),
            None => words.to_owned(),
        }
        .into(),
    )
}

/// What a user without the right to run scripts does without, and how to get it.
pub(super) async fn without_scripts(
    usage: &Usage,
    location: &KeyLocation,
    within: Duration,
) -> String {
    let pause = usage.polling_pause;
    let costs = format!(
        "this user may not run scripts, so there is no queue: waiters poll, about every {pause:?} each, and are served in no order"
    );
    match missing(usage, location, Wanted::Scripts, within).await {
        Some(line) => {
            format!("{costs}; an administrator of the server grants what a queue takes by `{line}`")
        }
        None => format!("{costs}; a queue takes `+eval +evalsha`, and what the scripts call"),
    }
}

/// The line that grants the missing rights; `None` if they are not found out, or cannot be granted.
async fn missing(
    usage: &Usage,
    location: &KeyLocation,
    wanted: Wanted,
    within: Duration,
) -> Option<String> {
    let scope = &usage.scope;
    let lock = scope.key();
    let survey = tokio::time::timeout(within, Survey::make(location, lock.as_deref()));
    let survey = survey.await.ok()?.ok()?;
    let rights = Rights {
        survey: &survey,
        lock: scope.pattern(),
        is_sharded: location.server.is_of_a_cluster(),
        others: others(usage, location),
    };
    let line = rights.line(wanted)?;
    let user = survey.user.as_deref();
    let user = user.or_else(|| location.server.connection.address().user());
    Some(format!("ACL SETUSER {} {line}", user.unwrap_or("default")))
}

/// The commands that a deployment needs beside those for locks.
fn others(usage: &Usage, location: &KeyLocation) -> Vec<&'static str> {
    let connection = &location.server.connection;
    let all = [
        ("select", connection.address().database() != 0),
        ("role", connection.sentinels().is_some()),
        ("wait", location.server.replica_acks.is_some()),
        ("cluster|slots", usage.are_several),
        ("asking", usage.are_several),
    ];
    let needed = all.iter().filter(|(_, is_needed)| *is_needed);
    needed.map(|(right, _)| *right).collect()
}

/// The rights to grant, as found by a survey.
struct Rights<'a> {
    survey: &'a Survey,
    /// The pattern for the keys of locks.
    lock: Option<String>,
    /// Whether channels are those of a slot.
    is_sharded: bool,
    others: Vec<&'static str>,
}

impl Rights<'_> {
    fn line(&self, wanted: Wanted) -> Option<String> {
        let has_scripts = self.survey.knows("eval") && self.survey.knows("evalsha");
        let scripts = has_scripts.then(|| self.scripts());
        // For a user with the right to run scripts, the line is the one for scripts.
        let must_be_scripts =
            wanted == Wanted::Scripts || (has_scripts && !self.survey.lacks("eval"));
        let commands = COMPARING
            .into_iter()
            .filter(|comparing| !must_be_scripts && self.survey.knows(comparing[0]))
            .map(|comparing| self.commands(comparing))
            .min_by_key(|commands| self.missing(commands).len());
        // A user with most of the rights for locks without scripts is meant to do without. Otherwise a queue is worth the longer
        // line.
        let effort = |commands: &[&'static str]| self.missing(commands).len();
        let (all, is_by_scripts) = match (scripts, commands) {
            (Some(scripts), Some(commands)) if effort(&scripts) > 3 * effort(&commands) => {
                (commands, false)
            }
            (Some(scripts), _) => (scripts, true),
            (None, commands) => (commands?, false),
        };
        let words = self.words(&all, is_by_scripts);
        (!words.is_empty()).then(|| words.join(" "))
    }

    /// A server refuses a pattern for a user that has all keys, or all channels, already. If it could not be tried whether the
    /// user has them, the words are in a selector, which is independent. A server before Redis 7 has no selectors, and gives new
    /// users no keys and all channels.
    fn words(&self, all: &[&'static str], is_by_scripts: bool) -> Vec<String> {
        let own = Some(format!("~{RESERVED}*"));
        let keys = [(On::Lock, self.lock.clone()), (On::Own, own)].into_iter();
        let keys = keys.filter_map(|(on, pattern)| Some((self.survey.reach(on), pattern?)));
        let keys: Vec<(Reach, String)> = keys.collect();
        let channel = is_by_scripts.then(|| format!("&{GRANTS}*"));
        let any = |wanted| keys.iter().any(|(reach, _)| *reach == wanted);
        if any(Reach::Untold) && !any(Reach::Beyond) && !self.survey.is_old {
            let patterns = keys.into_iter().map(|(_, pattern)| pattern);
            return in_a_selector(patterns.chain(channel).chain(granted(all)));
        }
        let beyond = keys
            .into_iter()
            .filter(|(reach, _)| *reach != Reach::Within);
        let patterns = beyond.map(|(_, pattern)| pattern);
        let missing = self.missing(all);
        match (self.survey.reach(On::Channel), channel) {
            (Reach::Beyond, Some(channel)) => {
                patterns.chain([channel]).chain(granted(&missing)).collect()
            }
            (Reach::Untold, Some(channel)) if !self.survey.is_old => {
                let (apart, missing): (Vec<&str>, Vec<&str>) =
                    missing.into_iter().partition(|right| is_of_channels(right));
                let apart = in_a_selector(std::iter::once(channel).chain(granted(&apart)));
                patterns.chain(granted(&missing)).chain(apart).collect()
            }
            _ => patterns.chain(granted(&missing)).collect(),
        }
    }

    fn scripts(&self) -> Vec<&'static str> {
        let sharded = ["ssubscribe", "spublish"].into_iter();
        let sharded = sharded.filter(|_| self.is_sharded);
        let scripts = SCRIPTS.into_iter();
        let scripts = scripts.filter(|right| !self.is_sharded || !is_of_channels(right));
        self.known(scripts.chain(self.others.iter().copied()).chain(sharded))
    }

    fn commands(&self, comparing: &[&'static str]) -> Vec<&'static str> {
        let comparing = comparing.iter().copied();
        self.known(
            COMMANDS
                .into_iter()
                .chain(comparing)
                .chain(self.others.iter().copied()),
        )
    }

    fn known(&self, rights: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
        rights.filter(|right| self.survey.knows(right)).collect()
    }

    fn missing(&self, rights: &[&'static str]) -> Vec<&'static str> {
        let rights = rights.iter().copied();
        rights.filter(|right| self.survey.lacks(right)).collect()
    }
}

fn granted<'a>(rights: &'a [&str]) -> impl Iterator<Item = String> + 'a {
    rights.iter().map(|right| format!("+{right}"))
}

fn is_of_channels(right: &str) -> bool {
    matches!(right, "subscribe" | "publish" | "ssubscribe" | "spublish")
}

fn in_a_selector(words: impl IntoIterator<Item = String>) -> Vec<String> {
    let (open, close) = ("(".to_owned(), ")".to_owned());
    std::iter::once(open).chain(words).chain([close]).collect()
}

/// A text as a pattern that matches it, in one word of a line: a character that would split the word becomes `?`.
fn literally(text: &str) -> String {
    let mut pattern = String::new();
    for c in text.chars() {
        match c {
            '*' | '?' | '[' | ']' | '\\' => pattern.extend(['\\', c]),
            '"' | '\'' => pattern.push('?'),
            // A pattern counts in bytes.
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
