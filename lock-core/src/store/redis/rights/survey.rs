//! Finding out which commands, keys and channels a server lets a user have.
//!
//! Each command is sent in a form that changes nothing. A server checks the rights before the arguments, and its refusal says
//! whether the command, the key or the channel is the reason.

use std::sync::Arc;

use redis::{ServerError, Value};

use crate::store::{
    Failure,
    owner_token::random_name,
    redis::{
        connection::{
            errors,
            reconnecting::ReconnectingConnection,
            wire::command::{
                Arg::{self, Number, Text},
                command, pipeline,
            },
        },
        topology::key_location::KeyLocation,
    },
};

/// What was found out.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The user's name on the server, if the user may ask for it.
    pub(crate) user: Option<String>,
    /// Whether new users have all channels, and there are no selectors: a server before Redis 7.
    pub(crate) is_old: bool,
    found: Vec<(&'static str, On, TrialResult)>,
}

/// What a command is tried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Nothing,
    /// A key of the reserved name space.
    Own,
    /// A key that stands for those of the locks.
    Lock,
    Channel,
}

/// The result of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrialResult {
    Allowed,
    /// The command is refused; nothing is known of the key or the channel.
    Refused,
    /// The key or the channel is refused.
    Beyond,
    /// The server does not know the command.
    Unknown,
}

/// Whether a user may have some keys or channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Within,
    Beyond,
    /// No command is allowed with which that could be tried.
    Untold,
}

/// One command that is tried.
type Trial<'a> = (&'static str, On, Vec<Arg<'a>>);

impl Survey {
    /// `lock`: a key that stands for those of the locks. It may be in use.
    pub(crate) async fn make(location: &KeyLocation, lock: Option<&str>) -> Result<Self, Failure> {
        let connection = location.server.connection.for_rights();
        let own = format!("{}{}", location.names.check, random_name());
        let (own, channel) = (Text(&own), Text(&location.names.grants));
        let mut survey = Self::default();
        let mut trials = on_own(own);
        trials.extend(alone(location.server.connection.address().database()));
        trials.extend(lock.map(Text).into_iter().flat_map(on_a_lock));
        trials.extend(["publish", "spublish"].map(|right| on_channel(right, &[channel, Text("")])));
        survey.run(&connection, &trials).await?;
        let current = connection.snapshot();
        let greeting = current.and_then(|current| current.greeting.clone());
        survey.is_old = greeting.is_some_and(|greeting| greeting.is_before(7));
        if survey.leaves_nothing_behind() {
            survey.run(&connection, &server_settings(own)).await?;
        }
        // Last: the subscriptions that these begin do not end on this connection, and some proxies swallow the first command.
        let delivery = if location.server.is_of_a_cluster() {
            "ssubscribe"
        } else {
            "subscribe"
        };
        let trials = [
            on_channel(delivery, &[channel]),
            ("multi", On::Nothing, vec![Text("MULTI")]),
        ];
        drop(survey.run(&connection, &trials).await);
        Ok(survey)
    }

    /// Sends all in one message.
    async fn run(
        &mut self,
        connection: &Arc<ReconnectingConnection>,
        trials: &[Trial<'_>],
    ) -> Result<(), Failure> {
        let commands = trials.iter().map(|(_, _, words)| command(&[words]));
        let within = connection.timing().command_timeout;
        let (_, answers) = connection
            .send_all(pipeline(commands), within, None)
            .await?;
        for ((right, on, _), answer) in trials.iter().zip(&answers) {
            match answer {
                Value::BulkString(user) if *right == "acl|whoami" => {
                    self.user = std::str::from_utf8(user).ok().map(str::to_owned);
                }
                Value::ServerError(error) => self.found.push((right, *on, verdict(error))),
                _ => self.found.push((right, *on, TrialResult::Allowed)),
            }
        }
        Ok(())
    }

    /// Whether a key that a command creates can be given an expiry before, and deleted after it; or whether no key can be
    /// created.
    fn leaves_nothing_behind(&self) -> bool {
        let has = |rights: [&'static str; 2], verdict| {
            let mut own = rights.into_iter().map(|right| (right, On::Own, verdict));
            own.any(|one| self.found.contains(&one))
        };
        let sets = ["set", "psetex"];
        has(sets, TrialResult::Beyond)
            || (has(sets, TrialResult::Allowed) && has(["del", "pexpire"], TrialResult::Allowed))
    }

    /// Whether the command is refused, or was not tried: granting a right twice does no harm.
    pub(crate) fn lacks(&self, right: &str) -> bool {
        let mut verdicts = self.verdicts(right).peekable();
        verdicts.peek().is_none() || verdicts.any(|verdict| verdict == TrialResult::Refused)
    }

    /// Whether the server has the command, as far as is known.
    pub(crate) fn knows(&self, right: &str) -> bool {
        self.verdicts(right)
            .all(|verdict| verdict != TrialResult::Unknown)
    }

    pub(crate) fn reach(&self, on: On) -> Reach {
        let mut verdicts = self.found.iter().filter(|(_, one, _)| *one == on);
        let is = |wanted: TrialResult| {
            move |(_, _, verdict): &(&str, On, TrialResult)| *verdict == wanted
        };
        if verdicts.clone().any(is(TrialResult::Beyond)) {
            Reach::Beyond
        } else if verdicts.any(is(TrialResult::Allowed)) {
            Reach::Within
        } else {
            Reach::Untold
        }
    }

    fn verdicts(&self, right: &str) -> impl Iterator<Item = TrialResult> {
        let of =
            move |(one, _, verdict): &(&str, On, TrialResult)| (*one == right).then_some(*verdict);
        self.found.iter().filter_map(of)
    }
}

fn alone<'a>(database: u32) -> Vec<Trial<'a>> {
    let commands: [(&'static str, &[Arg<'a>]); 12] = [
        ("acl|whoami", &[]),
        ("ping", &[]),
        ("time", &[]),
        ("role", &[]),
        ("asking", &[]),
        ("unwatch", &[]),
        ("discard", &[]),
        ("exec", &[]),
        ("info", &[Text("server")]),
        ("wait", &[Number(0), Number(1)]),
        ("select", &[Number(database.into())]),
        ("cluster|slots", &[]),
    ];
    commands
        .into_iter()
        .map(|(right, rest)| trial(right, On::Nothing, rest))
        .collect()
}

/// On a key that does not exist, or with wrong arguments.
fn on_own(own: Arg<'_>) -> Vec<Trial<'_>> {
    let (zero, one, none) = (Number(0), Number(1), Text(""));
    let commands: [(&'static str, &[Arg<'_>]); 8] = [
        ("del", &[own]),
        ("lpop", &[own]),
        ("linsert", &[own, Text("BEFORE"), none, none]),
        ("lset", &[own, zero, none]),
        ("lrem", &[own, one, none]),
        ("delex", &[own, Text("IFEQ"), zero]),
        ("delifeq", &[own, zero]),
        ("watch", &[own]),
    ];
    let commands = commands.into_iter();
    let own_alone = commands.map(|(right, rest)| trial(right, On::Own, rest));
    own_alone.chain(harmless(own, On::Own)).collect()
}

fn on_a_lock(lock: Arg<'_>) -> Vec<Trial<'_>> {
    harmless(lock, On::Lock).collect()
}

/// Whatever the key holds.
fn harmless(key: Arg<'_>, on: On) -> impl Iterator<Item = Trial<'_>> {
    const NO_HASH: &str = "0000000000000000000000000000000000000000";
    let (zero, one) = (Number(0), Number(1));
    let commands: [(&'static str, Vec<Arg<'_>>); 11] = [
        ("eval", vec![Text("return 1"), one, key]),
        ("evalsha", vec![Text(NO_HASH), one, key]),
        ("get", vec![key]),
        // A time of zero is no valid expiry.
        ("set", vec![key, zero, Text("PX"), zero]),
        ("psetex", vec![key, zero, zero]),
        ("pexpire", vec![key, Text("x")]),
        ("exists", vec![key]),
        ("pttl", vec![key]),
        ("lrange", vec![key, zero, zero]),
        ("lindex", vec![key, zero]),
        ("llen", vec![key]),
    ];
    commands
        .into_iter()
        .map(move |(right, rest)| trial(right, on, &rest))
}

/// The commands that create a key if it does not exist, between one that gives it an expiry and one that deletes it.
fn server_settings(own: Arg<'_>) -> Vec<Trial<'_>> {
    let (none, second) = (Text(""), Number(1000));
    let commands: [(&'static str, &[Arg<'_>]); 6] = [
        ("set", &[own, none, Text("PX"), second]),
        ("psetex", &[own, second, none]),
        ("incr", &[own]),
        ("rpush", &[own, none]),
        ("pexpire", &[own, Number(1)]),
        ("del", &[own]),
    ];
    commands
        .into_iter()
        .map(|(right, rest)| trial(right, On::Own, rest))
        .collect()
}

fn on_channel<'a>(right: &'static str, rest: &[Arg<'a>]) -> Trial<'a> {
    trial(right, On::Channel, rest)
}

fn trial<'a>(right: &'static str, on: On, rest: &[Arg<'a>]) -> Trial<'a> {
    let words = right.split('|').map(Text);
    (right, on, words.chain(rest.iter().copied()).collect())
}

fn verdict(error: &ServerError) -> TrialResult {
    let details = errors::details_of(error);
    match error.code() {
        "NOPERM" if details.contains("to run ") => TrialResult::Refused,
        "NOPERM" if details.contains("access") => TrialResult::Beyond,
        "NOPERM" => TrialResult::Refused,
        _ if details.contains("unknown command") || details.contains("unknown subcommand") => {
            TrialResult::Unknown
        }
        _ => TrialResult::Allowed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::connection::wire::reply::error;

    #[test]
    fn a_refusal_says_what_is_refused_on_every_server() {
        for (line, expected) in [
            (
                "NOPERM this user has no permissions to run the 'get' command or its subcommand",
                TrialResult::Refused,
            ),
            (
                "NOPERM User key has no permissions to run the 'get' command",
                TrialResult::Refused,
            ),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                TrialResult::Beyond,
            ),
            ("NOPERM No permissions to access a key", TrialResult::Beyond),
            (
                "NOPERM No permissions to access a channel",
                TrialResult::Beyond,
            ),
            (
                "NOPERM this user has no permissions to access one of the channels used as arguments",
                TrialResult::Beyond,
            ),
            (
                "ERR unknown command 'DELEX', with args beginning with: 'key'",
                TrialResult::Unknown,
            ),
            (
                "ERR invalid expire time in 'set' command",
                TrialResult::Allowed,
            ),
            ("MOVED 3999 127.0.0.1:6381", TrialResult::Allowed),
            (
                "NOSCRIPT No matching script. Please use EVAL.",
                TrialResult::Allowed,
            ),
        ] {
            assert_eq!(verdict(&error(line)), expected, "{line}");
        }
    }
}
