//! The handshake with a server, as a state machine without a socket: what is sent on new connections, and what follows from the replies.
//!
//! Proxies differ too much for a list of them. So a server is asked for what it can do, and a refusal in any words means "no". Up to four
//! messages leave on a connection: the greeting, the password if no greeting took it, all other questions, and in RESP2 a test of whether
//! all keys are on one server.
//!
//! | the server | what follows |
//! | --- | --- |
//! | refuses the greeting | RESP2, with the password once more; there are no pushes |
//! | ends the connection at the greeting | RESP2, and nothing that an old proxy may not know (`XADD`) is asked |
//! | ends the connection at the questions, refuses one or is silent | if it was to subscribe, the same without that |
//! | ends the connection at the questions, and was not to subscribe | the same without what an old proxy may not know |
//! | refuses `EVAL` or `EVALSHA` as unknown, or for lack of rights | no scripts |
//! | refuses `XADD`, or a script does not find keys that were written | commands go by scripts only: see [`Capabilities`] |
//! | has neither scripts nor streams | it cannot keep locks |
//! | refuses what a credentials provider returned | that is asked again, up to three times |
//! | says that it is not available now | the failure: another attempt is made later |
//!
//! A connection may also end by chance. So the first end only repeats the question, unless the server did the same before. A server that
//! has answered everything once is no such proxy, and an end at the greeting is then a failure.

use std::{mem, time::Duration};

use redis::{ServerError, Value};

use crate::{
    backend::redis::transport::{
        address::Address,
        capabilities::Capabilities,
        command::{Arg, Commands},
        errors, reply,
        traffic::NoReply,
    },
    credentials::Credentials,
    failure::Failure,
    moment::Moment,
    options::RESERVED,
};

/// The script that is run to see whether scripts can be run.
const PROBE: &str = "return 1";

/// Its SHA-1.
const PROBE_HASH: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

/// Counts the keys that the server of the first key has.
const COUNT: &str = "return redis.call('EXISTS', unpack(KEYS))";

/// The keys that are written to see whether they are on one server: two servers have all of them by a chance of 1 in 128.
const WRITTEN: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];

/// The pauses before a provider is asked again for credentials, where the server refused those that it returned.
const ASK_AGAIN: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_millis(150),
    Duration::from_millis(450),
];

const NO_RESP3: &str = "does not speak RESP3, in which grants come";

/// What the connections to a server are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Locks of a server that has all keys. Push messages arrive here, too.
    Locks,
    /// Locks, with push messages arriving on another connection.
    LocksOnly,
    /// Locks, for the tasks of one runtime.
    Requests,
    /// Push messages, and nothing else.
    Pushes,
    /// Other commands.
    OtherCommands,
}

/// What a handshake is about.
pub(super) struct Terms<'a> {
    pub(super) address: &'a Address,
    pub(super) purpose: Purpose,
    /// Whether sentinels say that the server is a primary. They may be behind.
    pub(super) is_by_sentinels: bool,
    /// The channel of push messages.
    pub(super) channel: &'a str,
    /// The name of the connections.
    pub(super) name: String,
    /// What the keys begin with that are written, which no other handshake uses.
    pub(super) written: String,
    /// How long all of it may take.
    pub(super) within: Duration,
    pub(super) started: Moment,
}

/// What is to be done next.
#[derive(Debug)]
pub(super) enum Step {
    /// These commands are sent in one message. They count as unanswered if there is no reply in this time.
    Ask(Commands, Option<Duration>),
    /// After a pause, another connection is made, with the credentials that there are by then.
    Reconnect(Duration),
    Ready(Found),
}

/// What is known of a server once the connection is ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) speaks_resp3: bool,
    /// `None` if the connection keeps no locks.
    pub(super) capabilities: Option<Capabilities>,
    pub(super) is_subscribed: bool,
    /// Why not, if it is worth a warning.
    pub(super) not_subscribed: Option<String>,
}

/// A command of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Greeting,
    Password,
    /// What the server reports about itself to a user's own client, which has sent the greeting.
    Itself,
    Name,
    Database,
    Life,
    Role,
    Subscription,
    ScriptByText,
    ScriptByHash,
    Stream,
    WrittenKey(usize),
    FoundKeys,
    DeletedKeys,
}

pub(super) struct Handshake<'a> {
    terms: Terms<'a>,
    /// How often credentials were refused.
    refusals: usize,
    /// Whether the server has answered everything on an earlier connection.
    has_answered_all: bool,
    /// Whether the next end of a connection may be by chance.
    may_be_chance: bool,
    /// Whether everything is asked, and not only what old proxies know.
    asks_all: bool,
    /// Why no subscription is tried any more.
    not_subscribed: Option<String>,
    /// The credentials of the connection that there is now, what was asked on it, and what it has shown.
    credentials: Option<Credentials>,
    asked: Vec<Question>,
    found: Found,
}

impl<'a> Handshake<'a> {
    pub(super) fn new(terms: Terms<'a>) -> Self {
        let address = terms.address;
        Self {
            refusals: 0,
            has_answered_all: address.has_spoken() && !address.closes_at_unknown(),
            may_be_chance: !address.closes_at_unknown(),
            asks_all: true,
            not_subscribed: None,
            credentials: None,
            asked: Vec::new(),
            found: Found::default(),
            terms,
        }
    }

    /// There is a connection. `speaks_resp3`: whether the user's own client has agreed on RESP3.
    pub(super) fn connected(
        &mut self,
        credentials: Option<Credentials>,
        speaks_resp3: bool,
    ) -> Result<Step, Failure> {
        self.credentials = credentials;
        self.found = Found {
            speaks_resp3,
            ..Found::default()
        };
        let address = self.terms.address;
        if self.asks_all && address.pushes() && address.client().is_none() {
            return Ok(self.ask(vec![Question::Greeting], None));
        }
        self.log_in()
    }

    /// The replies to the last message, or why there are none.
    pub(super) fn answered(
        &mut self,
        replies: Result<Vec<Value>, NoReply>,
        now: Moment,
    ) -> Result<Step, Failure> {
        let asked = mem::take(&mut self.asked);
        let next = match (replies, &asked[..]) {
            (Err(none), _) => self.unanswered(&asked, &none),
            (Ok(replies), asked) if replies.len() != asked.len() => {
                Err(errors::no_redis(self.terms.address))
            }
            (Ok(replies), [Question::Greeting]) => self.greeted(&replies[0]),
            (Ok(replies), [Question::Password]) => {
                (self.expect_okay(&replies[0])).and_then(|()| self.ask_the_rest())
            }
            (Ok(replies), [Question::WrittenKey(_), ..]) => Ok(self.count(&replies)),
            (Ok(replies), asked) => self.conclude(asked, &replies),
        };
        next.or_else(|failure| Ok(Step::Reconnect(self.failed(failure, now)?)))
    }

    /// There is no connection, or it is of no use. Returns the pause before the next one, if another one is made.
    pub(super) fn failed(&mut self, failure: Failure, now: Moment) -> Result<Duration, Failure> {
        // The refusal is to be reported, and not that the time for a connection is over.
        let most = self.terms.within / 2;
        match ASK_AGAIN.get(self.refusals) {
            Some(pause)
                if errors::is_for_credentials(&failure)
                    && now.since(self.terms.started) + *pause <= most =>
            {
                self.refusals += 1;
                Ok(*pause)
            }
            _ => Err(failure),
        }
    }

    fn ask(&mut self, questions: Vec<Question>, within: Option<Duration>) -> Step {
        let mut message = Commands::default();
        for question in &questions {
            message.add(&[&self.words(*question)]);
        }
        self.asked = questions;
        Step::Ask(message, within)
    }

    /// A server or proxy that refuses the greeting, in whatever words, is spoken to in RESP2. A wrong password then shows once more.
    fn greeted(&mut self, reply: &Value) -> Result<Step, Failure> {
        let address = self.terms.address;
        match reply {
            Value::ServerError(error) => {
                if let failure @ Failure::NotNow(_) = errors::refused(error, address) {
                    return Err(failure);
                }
            }
            Value::Map(_) | Value::Array(_) => {
                self.expect_all_keys(reply)?;
                self.found.speaks_resp3 = true;
                address.note_spoke();
            }
            _ => return Err(errors::no_redis(address)),
        }
        self.log_in()
    }

    fn log_in(&mut self) -> Result<Step, Failure> {
        let is_logged_in = self.found.speaks_resp3 || self.terms.address.client().is_some();
        if self.credentials.is_some() && !is_logged_in {
            return Ok(self.ask(vec![Question::Password], None));
        }
        self.ask_the_rest()
    }

    fn ask_the_rest(&mut self) -> Result<Step, Failure> {
        let Terms {
            address, purpose, ..
        } = self.terms;
        if purpose == Purpose::Pushes && !self.found.speaks_resp3 {
            return Err(Failure::refused(format!("{address} {NO_RESP3}")));
        }
        let questions = self.questions();
        if questions.is_empty() {
            return Ok(self.ready());
        }
        // A connection takes three round trips at least, so one that is made in time gets each reply within a third of the time.
        let within = (questions.contains(&Question::Subscription)).then(|| self.terms.within / 3);
        Ok(self.ask(questions, within))
    }

    fn questions(&self) -> Vec<Question> {
        let Terms {
            address, purpose, ..
        } = self.terms;
        let (speaks_resp3, is_client) = (self.found.speaks_resp3, address.client().is_some());
        let keeps_locks = self.keeps_locks();
        let is_asked = [
            (Question::Itself, is_client && speaks_resp3),
            (Question::Name, speaks_resp3),
            (Question::Database, !is_client && address.database() != 0),
            (Question::Life, !self.asks_all),
            (Question::Role, self.terms.is_by_sentinels),
            (
                Question::Subscription,
                purpose == Purpose::Locks && speaks_resp3 && self.not_subscribed.is_none(),
            ),
            (Question::ScriptByText, keeps_locks),
            (Question::ScriptByHash, keeps_locks),
            (Question::Stream, keeps_locks && self.asks_all),
        ];
        let asked = is_asked.into_iter().filter(|(_, is_asked)| *is_asked);
        asked.map(|(question, _)| question).collect()
    }

    fn keeps_locks(&self) -> bool {
        use Purpose::{Locks, LocksOnly, Requests};
        matches!(self.terms.purpose, Locks | LocksOnly | Requests)
    }

    fn words(&self, question: Question) -> Vec<Arg<'_>> {
        use Arg::{Joined, Number, Text};
        let (check, empty) = (Joined(RESERVED, "check"), Text(""));
        let written = WRITTEN.map(|name| Joined(&self.terms.written, name));
        match question {
            Question::Greeting => {
                let mut words = vec![Text("HELLO"), Number(3)];
                if let Some(credentials) = &self.credentials {
                    let user = credentials.user.as_deref().unwrap_or("default");
                    words.extend(["AUTH", user, &credentials.password].map(Text));
                }
                words
            }
            Question::Password => self.credentials.iter().flat_map(auth).collect(),
            Question::Itself => vec![Text("HELLO")],
            Question::Name => ["CLIENT", "SETNAME", &self.terms.name].map(Text).into(),
            Question::Database => {
                let database = self.terms.address.database().unsigned_abs();
                vec![Text("SELECT"), Number(database)]
            }
            Question::Life => vec![Text("PING")],
            Question::Role => vec![Text("ROLE")],
            Question::Subscription => vec![Text("SUBSCRIBE"), Text(self.terms.channel)],
            // Some proxies refuse a script without a key.
            Question::ScriptByText => vec![Text("EVAL"), Text(PROBE), Number(1), check],
            Question::ScriptByHash => vec![Text("EVALSHA"), Text(PROBE_HASH), Number(1), check],
            Question::Stream => {
                let mut words = vec![Text("XADD"), check];
                // Makes no stream.
                words.extend(["NOMKSTREAM", "MAXLEN", "0", "*", "", ""].map(Text));
                words
            }
            Question::WrittenKey(key) => {
                vec![Text("SET"), written[key], empty, Text("PX"), Number(1000)]
            }
            Question::FoundKeys => {
                let many = Number(WRITTEN.len() as u64);
                [Text("EVAL"), Text(COUNT), many]
                    .into_iter()
                    .chain(written)
                    .collect()
            }
            Question::DeletedKeys => [Text("DEL")].into_iter().chain(written).collect(),
        }
    }

    /// What the replies to all questions show.
    fn conclude(&mut self, asked: &[Question], replies: &[Value]) -> Result<Step, Failure> {
        let address = self.terms.address;
        let (mut refused_scripts, mut streams) = (Vec::new(), false);
        for (question, reply) in asked.iter().zip(replies) {
            match (question, reply) {
                (Question::Itself, reply) => self.expect_all_keys(reply)?,
                (Question::Database, reply) => self.expect_okay(reply)?,
                // If ROLE is forbidden, the first command that writes reports READONLY.
                (Question::Role, Value::Array(words))
                    if words.first().and_then(reply::bytes) != Some(b"master") =>
                {
                    let why = "is a replica: the sentinels do not know the new primary yet";
                    return Err(Failure::not_now(format!("{address} {why}")));
                }
                (Question::Subscription, reply) => {
                    self.found.not_subscribed = why_not_subscribed(reply, address)?;
                }
                (Question::ScriptByText | Question::ScriptByHash, Value::ServerError(error)) => {
                    refused_scripts.push(error);
                }
                (Question::Stream, reply) => {
                    streams = !matches!(reply, Value::ServerError(error) if errors::is_refused_by_proxy(error));
                }
                // Locks work without the name of a connection, which a user may lack the right to set. No known server gives another
                // reply to the scripts, and the first lock would show it.
                _ => {}
            }
        }
        if !self.keeps_locks() {
            return Ok(self.ready());
        }
        let scripts = !(refused_scripts.iter()).any(|error| errors::is_unavailable_command(error));
        let is_odd = |error: &&&ServerError| !errors::is_for_its_key_or_script(error);
        let failure = match refused_scripts.iter().find(is_odd) {
            Some(error) if scripts => errors::refused(error, address),
            _ if !scripts && !streams => errors::no_streams(address),
            _ => {
                self.found.capabilities = Some(Capabilities {
                    scripts,
                    forwards_all: streams,
                });
                // A node of a cluster has not all keys, and no proxy is known that speaks RESP3 and has several servers.
                let may_be_several =
                    self.terms.purpose != Purpose::LocksOnly && !self.found.speaks_resp3;
                if !(may_be_several && scripts && streams) {
                    return Ok(self.ready());
                }
                let mut questions: Vec<_> = (0..WRITTEN.len()).map(Question::WrittenKey).collect();
                questions.extend([Question::FoundKeys, Question::DeletedKeys]);
                return Ok(self.ask(questions, None));
            }
        };
        self.try_with_less(asked, failure, false)
    }

    /// A proxy may send each command to a server of its first key, and give no error then. If this cannot be tried, there is one server.
    fn count(&mut self, replies: &[Value]) -> Step {
        let are_written = replies[..WRITTEN.len()]
            .iter()
            .all(|reply| *reply == Value::Okay);
        if let (Value::Int(found), Some(known), true) = (
            &replies[WRITTEN.len()],
            &mut self.found.capabilities,
            are_written,
        ) {
            known.forwards_all = i64::try_from(WRITTEN.len()) == Ok(*found);
        }
        self.ready()
    }

    /// There is no reply to the last message.
    fn unanswered(&mut self, asked: &[Question], none: &NoReply) -> Result<Step, Failure> {
        let address = self.terms.address;
        let failure = errors::handshake(none, address);
        match (asked, none) {
            ([Question::Greeting], NoReply::Broken(_))
                if !address.has_spoken() || address.closes_at_unknown() =>
            {
                self.asks_all = mem::take(&mut self.may_be_chance);
                Ok(Step::Reconnect(Duration::ZERO))
            }
            ([Question::Greeting | Question::Password], _) => Err(failure),
            (_, NoReply::Late) => self.try_with_less(asked, failure, false),
            _ => self.try_with_less(asked, failure, true),
        }
    }

    /// Some servers take nothing but subscriptions after one. Some proxies close the connection at SUBSCRIBE, and some drop it without
    /// a reply. Later replies on that connection may then be assigned to the wrong request, so another one is made in any case.
    fn try_with_less(
        &mut self,
        asked: &[Question],
        failure: Failure,
        has_ended: bool,
    ) -> Result<Step, Failure> {
        if matches!(failure, Failure::NotNow(_)) || !self.keeps_locks() {
            return Err(failure);
        }
        if has_ended && mem::take(&mut self.may_be_chance) {
            // The same once more.
        } else if asked.contains(&Question::Subscription) {
            self.not_subscribed = Some(failure.text());
        } else if has_ended && self.asks_all && !self.has_answered_all {
            self.asks_all = false;
        } else {
            return Err(failure);
        }
        Ok(Step::Reconnect(Duration::ZERO))
    }

    fn ready(&mut self) -> Step {
        let (address, mut found) = (self.terms.address, mem::take(&mut self.found));
        if !self.asks_all {
            address.note_closes_at_unknown(true);
        } else if self.keeps_locks() {
            address.note_closes_at_unknown(false);
        }
        address.note_spoke();
        let has_queue = found.capabilities.is_some_and(|known| known.scripts);
        if self.terms.purpose == Purpose::Locks && has_queue {
            let no_resp3 = (!found.speaks_resp3).then(|| format!("it {NO_RESP3}"));
            found.not_subscribed = no_resp3
                .or_else(|| self.not_subscribed.take())
                .or(found.not_subscribed);
            found.is_subscribed = found.not_subscribed.is_none();
        } else {
            found.not_subscribed = None;
        }
        Step::Ready(found)
    }

    /// A node of a cluster has only some of the keys, and companion keys may be on different nodes.
    fn expect_all_keys(&self, greeting: &Value) -> Result<(), Failure> {
        let mode = reply::field(greeting, "mode").and_then(reply::bytes);
        if self.terms.purpose == Purpose::Locks && mode == Some(b"cluster") {
            return Err(errors::of_a_cluster(self.terms.address));
        }
        Ok(())
    }

    fn expect_okay(&self, reply: &Value) -> Result<(), Failure> {
        match reply {
            Value::Okay => Ok(()),
            Value::ServerError(error) => Err(errors::refused(error, self.terms.address)),
            _ => Err(errors::no_redis(self.terms.address)),
        }
    }
}

/// The command that logs a user in.
pub(super) fn auth(credentials: &Credentials) -> Vec<Arg<'_>> {
    let mut words = vec![Arg::Text("AUTH")];
    words.extend(credentials.user.as_deref().map(Arg::Text));
    words.push(Arg::Text(&credentials.password));
    words
}

/// Why no push messages arrive, by the reply to a subscription.
fn why_not_subscribed(reply: &Value, address: &Address) -> Result<Option<String>, Failure> {
    Ok(Some(match reply {
        Value::Push { .. } => return Ok(None),
        Value::ServerError(error) => match errors::refused(error, address) {
            failure @ Failure::NotNow(_) => return Err(failure),
            _ if error.code() == "NOPERM" => {
                format!("the user lacks `+subscribe &{RESERVED}grants:*`")
            }
            _ => error.code().to_owned(),
        },
        _ => "a reply of the wrong form".to_owned(),
    }))
}

#[cfg(test)]
mod tests;
