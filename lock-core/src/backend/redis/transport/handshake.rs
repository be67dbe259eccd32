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
//! has answered everything once is not such a proxy, and an end at the greeting is then a failure.

use std::{mem, time::Duration};

use redis::Value;

use crate::{
    backend::redis::transport::{
        address::Address,
        capabilities::Capabilities,
        command::{
            Arg::{self, Joined, Number, Text},
            Commands,
        },
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
    Ready(Known),
}

/// What is known of a server by the handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Whether it speaks the third version of the protocol, in which push messages arrive.
    pub(crate) speaks_resp3: bool,
    /// The commands by which locks are kept; `None` if this connection keeps no locks.
    pub(crate) capabilities: Option<Capabilities>,
    /// Whether the connection is subscribed to the channel of its manager.
    pub(crate) is_subscribed: bool,
    /// Why not, although it would be of use.
    pub(super) not_subscribed: Option<String>,
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
    no_subscription: Option<String>,
    /// The credentials of the connection that there is now, the commands of the last message, and what is known by then.
    credentials: Option<Credentials>,
    asked: Vec<&'static str>,
    known: Known,
}

/// A command, and what follows its name.
type Question<'a> = (&'static str, Vec<Arg<'a>>);

impl<'a> Handshake<'a> {
    pub(super) fn new(terms: Terms<'a>) -> Self {
        let closes_at_unknown = terms.address.closes_at_unknown();
        Self {
            refusals: 0,
            has_answered_all: terms.address.has_spoken() && !closes_at_unknown,
            may_be_chance: !closes_at_unknown,
            asks_all: true,
            no_subscription: None,
            credentials: None,
            asked: Vec::new(),
            known: Known::default(),
            terms,
        }
    }

    /// There is a connection. `speaks_resp3`: whether a user's own client has agreed on RESP3.
    pub(super) fn connected(
        &mut self,
        credentials: Option<Credentials>,
        speaks_resp3: bool,
    ) -> Result<Step, Failure> {
        self.credentials = credentials;
        self.known = Known::default();
        self.known.speaks_resp3 = speaks_resp3;
        let address = self.terms.address;
        if !(self.asks_all && address.pushes() && address.client().is_none()) {
            return self.log_in();
        }
        let mut words = vec![Number(3)];
        let credentials = self.credentials.clone();
        if let Some(Credentials { user, password, .. }) = &credentials {
            let user = user.as_deref().unwrap_or("default");
            words.extend(["AUTH", user, password].map(Text));
        }
        Ok(self.ask(&[("HELLO", words)], None))
    }

    /// The replies to the last message, or why there are none.
    pub(super) fn answered(
        &mut self,
        replies: Result<Vec<Value>, NoReply>,
        now: Moment,
    ) -> Result<Step, Failure> {
        let (asked, address) = (mem::take(&mut self.asked), self.terms.address);
        let next = match (&asked[..], replies) {
            (asked, Err(none)) => {
                let failure = errors::handshake(&none, address);
                let has_ended = match none {
                    NoReply::Late => false,
                    NoReply::Broken(_) => true,
                    _ => asked != ["HELLO"],
                };
                self.try_with_less(asked, failure, has_ended)
            }
            (asked, Ok(replies)) if replies.len() != asked.len() => Err(errors::no_redis(address)),
            (["HELLO"], Ok(replies)) if address.client().is_none() => self.greeted(&replies[0]),
            (["AUTH"], Ok(replies)) => {
                (expect_okay(&replies[0], address)).and_then(|()| self.ask_the_rest())
            }
            (["SET", ..], Ok(replies)) => Ok(self.counted(&replies)),
            (asked, Ok(replies)) => self.conclude(asked, &replies),
        };
        next.or_else(|failure| Ok(Step::Reconnect(self.failed(failure, now)?)))
    }

    /// There is no connection, or it is of no use. Returns the pause before the next one, if another one is made.
    pub(super) fn failed(&mut self, failure: Failure, now: Moment) -> Result<Duration, Failure> {
        // The refusal is to be reported, and not that the time for a connection is over.
        let left = (self.terms.within / 2).saturating_sub(now.since(self.terms.started));
        match ASK_AGAIN.get(self.refusals) {
            Some(pause) if errors::is_for_credentials(&failure) && *pause <= left => {
                self.refusals += 1;
                Ok(*pause)
            }
            _ => Err(failure),
        }
    }

    fn ask(&mut self, questions: &[Question<'_>], within: Option<Duration>) -> Step {
        let mut message = Commands::default();
        for (name, words) in questions {
            message.add(&[&[Text(name)], words]);
        }
        self.asked = questions.iter().map(|(name, _)| *name).collect();
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
                self.known.speaks_resp3 = true;
                address.note_spoke();
            }
            _ => return Err(errors::no_redis(address)),
        }
        self.log_in()
    }

    fn log_in(&mut self) -> Result<Step, Failure> {
        let is_logged_in = self.known.speaks_resp3 || self.terms.address.client().is_some();
        match self.credentials.clone().filter(|_| !is_logged_in) {
            Some(credentials) => Ok(self.ask(&[("AUTH", login(&credentials))], None)),
            None => self.ask_the_rest(),
        }
    }

    fn ask_the_rest(&mut self) -> Result<Step, Failure> {
        let (address, purpose) = (self.terms.address, self.terms.purpose);
        let is_client = address.client().is_some();
        let speaks_resp3 = self.known.speaks_resp3;
        if purpose == Purpose::Pushes && !speaks_resp3 {
            return Err(Failure::refused(format!("{address} {NO_RESP3}")));
        }
        let name = self.terms.name.clone();
        let mut questions: Vec<Question<'_>> = Vec::new();
        if is_client && speaks_resp3 {
            // The client has sent the greeting.
            questions.push(("HELLO", vec![]));
        }
        if speaks_resp3 {
            questions.push(("CLIENT", vec![Text("SETNAME"), Text(&name)]));
        }
        if address.database() != 0 && !is_client {
            questions.push(("SELECT", vec![Number(address.database().unsigned_abs())]));
        }
        if self.terms.is_by_sentinels {
            questions.push(("ROLE", vec![]));
        }
        if !self.asks_all {
            // Shows that the greeting alone was refused.
            questions.push(("PING", vec![]));
        }
        self.known.not_subscribed = if speaks_resp3 {
            self.no_subscription.clone()
        } else {
            Some(format!("it {NO_RESP3}"))
        };
        let mut within = None;
        if purpose == Purpose::Locks && self.known.not_subscribed.is_none() {
            questions.push(("SUBSCRIBE", vec![Text(self.terms.channel)]));
            // A connection takes three round trips at least, so one that is made in time gets each reply within a third of the time.
            within = Some(self.terms.within / 3);
        }
        if self.keeps_locks() {
            // Some proxies refuse a script without a key.
            let key = Joined(RESERVED, "check");
            questions.push(("EVAL", vec![Text(PROBE), Number(1), key]));
            questions.push(("EVALSHA", vec![Text(PROBE_HASH), Number(1), key]));
            if self.asks_all {
                // Makes no stream.
                let words = ["NOMKSTREAM", "MAXLEN", "0", "*", "", ""].map(Text);
                questions.push(("XADD", [key].into_iter().chain(words).collect()));
            }
        }
        if questions.is_empty() {
            return Ok(self.ready());
        }
        Ok(self.ask(&questions, within))
    }

    fn keeps_locks(&self) -> bool {
        use Purpose::{Locks, LocksOnly, Requests};
        matches!(self.terms.purpose, Locks | LocksOnly | Requests)
    }

    /// What the replies to all questions show.
    fn conclude(&mut self, asked: &[&str], replies: &[Value]) -> Result<Step, Failure> {
        let address = self.terms.address;
        let (mut refused_scripts, mut streams) = (Vec::new(), false);
        for (name, reply) in asked.iter().zip(replies) {
            match (*name, reply) {
                ("HELLO", reply) => self.expect_all_keys(reply)?,
                ("SELECT", reply) => expect_okay(reply, address)?,
                // If ROLE is forbidden, the first command that writes reports READONLY.
                ("ROLE", Value::Array(words))
                    if words.first().and_then(reply::bytes) != Some(b"master") =>
                {
                    let why = "is a replica: the sentinels do not know the new primary yet";
                    return Err(Failure::not_now(format!("{address} {why}")));
                }
                ("SUBSCRIBE", reply) => {
                    self.known.not_subscribed = why_not_subscribed(reply, address)?;
                }
                ("EVAL" | "EVALSHA", Value::ServerError(error)) => refused_scripts.push(error),
                ("XADD", Value::ServerError(error)) => {
                    streams = !errors::is_refused_by_proxy(error);
                }
                ("XADD", _) => streams = true,
                // Locks work without the name of a connection, which a user may lack the right to set. No known server gives another
                // reply to the scripts, and the first lock would show it.
                _ => {}
            }
        }
        if !self.keeps_locks() {
            return Ok(self.ready());
        }
        let scripts = !(refused_scripts.iter()).any(|error| errors::is_unavailable_command(error));
        let mut refused = refused_scripts.iter();
        let odd = refused.find(|error| !errors::is_for_its_key_or_script(error));
        let failure = match odd {
            Some(error) if scripts => errors::refused(error, address),
            _ if !scripts && !streams => errors::no_streams(address),
            _ => {
                self.known.capabilities = Some(Capabilities {
                    scripts,
                    forwards_all: streams,
                });
                // A node of a cluster has not all keys, and no proxy is known that speaks RESP3 and has several servers.
                let is_one = self.known.speaks_resp3 || self.terms.purpose == Purpose::LocksOnly;
                return Ok(if scripts && streams && !is_one {
                    self.count()
                } else {
                    self.ready()
                });
            }
        };
        self.try_with_less(asked, failure, false)
    }

    /// Asks whether a script finds keys that were written one by one. A proxy may send each command to a server of its first key, and
    /// give no error then.
    fn count(&mut self) -> Step {
        let front = self.terms.written.clone();
        let keys = WRITTEN.map(|name| Joined(&front, name));
        let set = |key| ("SET", vec![key, Text(""), Text("PX"), Number(1000)]);
        let mut questions = keys.map(set).to_vec();
        let many = [Text(COUNT), Number(WRITTEN.len() as u64)];
        questions.push(("EVAL", many.into_iter().chain(keys).collect()));
        questions.push(("DEL", keys.to_vec()));
        self.ask(&questions, None)
    }

    /// If this cannot be tried, there is one server.
    fn counted(&mut self, replies: &[Value]) -> Step {
        let (written, rest) = replies.split_at(WRITTEN.len());
        if let (Value::Int(found), Some(known)) = (&rest[0], &mut self.known.capabilities)
            && written.iter().all(|reply| *reply == Value::Okay)
        {
            known.forwards_all = i64::try_from(WRITTEN.len()) == Ok(*found);
        }
        self.ready()
    }

    /// The connection is of no use after these commands. Another one is made, without something if that may be the reason.
    ///
    /// Some servers take nothing but subscriptions after one. Some proxies close the connection at SUBSCRIBE, and some drop it without
    /// a reply. Later replies on that connection may then be assigned to the wrong request.
    fn try_with_less(
        &mut self,
        asked: &[&str],
        failure: Failure,
        has_ended: bool,
    ) -> Result<Step, Failure> {
        let address = self.terms.address;
        let is_chosen_by_us = match asked {
            // Where a server has spoken before, the connection has ended for another reason.
            ["HELLO"] => !address.has_spoken() || address.closes_at_unknown(),
            ["AUTH"] => false,
            _ => self.keeps_locks(),
        };
        if matches!(failure, Failure::NotNow(_)) || !is_chosen_by_us {
            return Err(failure);
        }
        if has_ended && mem::take(&mut self.may_be_chance) {
            // The same once more.
        } else if asked.contains(&"SUBSCRIBE") {
            self.no_subscription = Some(failure.text());
        } else if has_ended && self.asks_all && !self.has_answered_all {
            self.asks_all = false;
        } else {
            return Err(failure);
        }
        Ok(Step::Reconnect(Duration::ZERO))
    }

    fn ready(&mut self) -> Step {
        let (address, mut known) = (self.terms.address, mem::take(&mut self.known));
        if !self.asks_all || self.keeps_locks() {
            address.note_closes_at_unknown(!self.asks_all);
        }
        address.note_spoke();
        // Without scripts there is no queue.
        let is_of_use = self.terms.purpose == Purpose::Locks
            && known.capabilities.is_some_and(|known| known.scripts);
        known.not_subscribed = known.not_subscribed.filter(|_| is_of_use);
        known.is_subscribed = is_of_use && known.not_subscribed.is_none();
        Step::Ready(known)
    }

    /// A node of a cluster has only some of the keys, and companion keys may be on different nodes.
    fn expect_all_keys(&self, greeting: &Value) -> Result<(), Failure> {
        let mode = reply::field(greeting, "mode").and_then(reply::bytes);
        if self.terms.purpose == Purpose::Locks && mode == Some(b"cluster") {
            return Err(errors::of_a_cluster(self.terms.address));
        }
        Ok(())
    }
}

fn expect_okay(reply: &Value, address: &Address) -> Result<(), Failure> {
    match reply {
        Value::Okay => Ok(()),
        Value::ServerError(error) => Err(errors::refused(error, address)),
        _ => Err(errors::no_redis(address)),
    }
}

/// What follows AUTH.
pub(super) fn login(credentials: &Credentials) -> Vec<Arg<'_>> {
    let user = credentials.user.as_deref();
    let words = user.into_iter().chain([&*credentials.password]);
    words.map(Text).collect()
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
