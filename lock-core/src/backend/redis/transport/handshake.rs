//! The handshake with a server, as a state machine without a socket. It decides what to send on new connections, and what the
//! replies mean.
//!
//! Proxies differ too much for a list of them, so each server is asked what it can do, and a refusal in any words means "no".
//! Up to four messages leave on a connection: the greeting, the password if the greeting did not carry it, all other questions,
//! and in RESP2 a test of whether all keys are on one server.
//!
//! | the server | consequence |
//! | --- | --- |
//! | refuses the greeting | RESP2, with the password sent again; there are no pushes |
//! | ends the connection at the greeting | RESP2, without questions that an old proxy may not know (`XADD`) |
//! | ends the connection at the questions, refuses one or is silent | if it was to subscribe, a new connection without the subscription |
//! | ends the connection at the questions, and was not to subscribe | a new connection without questions that an old proxy may not know |
//! | refuses `EVAL` or `EVALSHA` as unknown, or for lack of rights | no scripts |
//! | refuses `XADD`, or a script does not find keys that were written | commands are sent only by scripts: see [`Capabilities`] |
//! | has neither scripts nor streams | failure: it cannot store locks |
//! | refuses what a credentials provider returned | the provider is asked again, up to three times |
//! | says that it is unavailable at the moment | failure: another attempt is made later |
//!
//! A connection may also end by chance, so the first end only repeats the question, unless the server did the same before. A
//! server that has answered everything once is not such a proxy, and if it ends the connection at the greeting, the handshake
//! fails.

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

/// The script that shows whether scripts can be run.
const PROBE: &str = "return 1";

/// The SHA-1 hash of [`PROBE`].
const PROBE_HASH: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

/// A script that counts the keys that the server of the first key has.
const COUNT: &str = "return redis.call('EXISTS', unpack(KEYS))";

/// The keys that are written to check whether all keys are on one server. If there are two servers, the chance that one of them
/// has all of these is 1 in 128.
const WRITTEN: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];

/// The pauses before a provider is asked again for credentials after the server refused the previous ones.
const ASK_AGAIN: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_millis(150),
    Duration::from_millis(450),
];

const NO_RESP3: &str = "does not speak RESP3, which grants need";

/// The purpose of the connections to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Locks on a server that has all keys. Push messages arrive here, too.
    Locks,
    /// Locks, with push messages arriving on another connection.
    LocksOnly,
    /// Locks, for the tasks of one runtime.
    Requests,
    /// Push messages only.
    Pushes,
    /// Other commands.
    OtherCommands,
}

/// The parameters of a handshake.
pub(super) struct Terms<'a> {
    pub(super) address: &'a Address,
    pub(super) purpose: Purpose,
    /// `true` if sentinels say that the server is a primary. Their information may be stale.
    pub(super) is_by_sentinels: bool,
    /// The channel of push messages.
    pub(super) channel: &'a str,
    /// The name given to the connections.
    pub(super) name: String,
    /// The prefix of the keys that are written, which no other handshake uses.
    pub(super) written: String,
    /// The time-out of the whole handshake.
    pub(super) within: Duration,
    pub(super) started: Moment,
}

/// The next step of the handshake.
#[derive(Debug)]
pub(super) enum Step {
    /// Send these commands in one message. They count as unanswered if there is no reply within this time.
    Ask(Commands, Option<Duration>),
    /// Make another connection after a pause, with the credentials that are current by then.
    Reconnect(Duration),
    Ready(Known),
}

/// The results of a handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// `true` if it speaks the third version of the protocol, in which push messages arrive.
    pub(crate) speaks_resp3: bool,
    /// The commands available for locks; `None` if this connection is not for locks.
    pub(crate) capabilities: Option<Capabilities>,
    /// `true` if the connection is subscribed to the channel of its manager.
    pub(crate) is_subscribed: bool,
    /// The reason why it is not subscribed, if a subscription would be useful.
    pub(super) not_subscribed: Option<String>,
}

pub(super) struct Handshake<'a> {
    terms: Terms<'a>,
    /// The number of times that credentials were refused.
    refusals: usize,
    /// `true` if the server has answered everything on an earlier connection.
    has_answered_all: bool,
    /// The ends of a connection that may still be accidental.
    may_be_chance: Chance,
    /// `true` if all questions are asked, rather than only those that old proxies know.
    asks_all: bool,
    /// The reason why subscribing is no longer tried.
    no_subscription: Option<String>,
    /// The credentials of the current connection, the commands of the last message, and the results so far.
    credentials: Option<Credentials>,
    asked: Vec<&'static str>,
    known: Known,
}

/// The kinds of ends of a connection that may be accidental. Each kind is accepted at most once, so that the attempts are bounded.
#[derive(Clone, Copy, Debug)]
struct Chance {
    at_greeting: bool,
    later: bool,
}

/// The name of a command, and its arguments.
type Question<'a> = (&'static str, Vec<Arg<'a>>);

impl<'a> Handshake<'a> {
    pub(super) fn new(terms: Terms<'a>) -> Self {
        let closes_at_unknown = terms.address.closes_at_unknown();
        Self {
            refusals: 0,
            has_answered_all: terms.address.has_spoken() && !closes_at_unknown,
            may_be_chance: Chance {
                at_greeting: !closes_at_unknown,
                later: !closes_at_unknown,
            },
            asks_all: true,
            no_subscription: None,
            credentials: None,
            asked: Vec::new(),
            known: Known::default(),
            terms,
        }
    }

    /// Starts the handshake on a new connection. `speaks_resp3` says whether a user's own client has agreed on RESP3.
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

    /// Handles the replies to the last message, or the reason why there are none.
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

    /// Handles a connection that could not be made, or is unusable. Returns the pause before the next attempt, or the
    /// failure if there is none.
    pub(super) fn failed(&mut self, failure: Failure, now: Moment) -> Result<Duration, Failure> {
        // Leaves enough time to report the refusal itself rather than a time-out.
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

    /// Handles the reply to the greeting. If a server or proxy refuses it, in whatever words, RESP2 is used, where a wrong
    /// password is refused again.
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
            // The user's client has sent the greeting, so this asks only for the server's mode.
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
            // A connection takes at least three round trips, so each reply has a third of the time-out.
            within = Some(self.terms.within / 3);
        }
        if self.keeps_locks() {
            // Some proxies refuse a script without a key.
            let key = Joined(RESERVED, "check");
            questions.push(("EVAL", vec![Text(PROBE), Number(1), key]));
            questions.push(("EVALSHA", vec![Text(PROBE_HASH), Number(1), key]));
            if self.asks_all {
                // Creates no stream.
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

    /// Draws the conclusions from the replies to all questions.
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
                // Locks work without the name of a connection, which a user may lack the right to set. No known server replies
                // anything else to the scripts; if one did, the first lock would show it.
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
                // A node of a cluster does not have all keys, and no proxy is known that speaks RESP3 and has several servers.
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

    /// Checks whether a script finds keys that were written one by one. A proxy may silently send each command to the server of
    /// its first key.
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

    /// Handles the reply to [`count`](Self::count). If the test could not be run, one server is assumed.
    fn counted(&mut self, replies: &[Value]) -> Step {
        let (written, rest) = replies.split_at(WRITTEN.len());
        if let (Value::Int(found), Some(known)) = (&rest[0], &mut self.known.capabilities)
            && written.iter().all(|reply| *reply == Value::Okay)
        {
            known.forwards_all = i64::try_from(WRITTEN.len()) == Ok(*found);
        }
        self.ready()
    }

    /// Handles a connection that is unusable after these commands. A new connection is made, without the command that
    /// may be the cause.
    ///
    /// Some servers accept only subscription commands after a subscription. Some proxies close the connection at SUBSCRIBE, and
    /// some drop the command without a reply, so that later replies may be assigned to the wrong requests.
    fn try_with_less(
        &mut self,
        asked: &[&str],
        failure: Failure,
        has_ended: bool,
    ) -> Result<Step, Failure> {
        let address = self.terms.address;
        let is_chosen_by_us = match asked {
            // If a server here has spoken before, the connection has ended for another reason.
            ["HELLO"] => !address.has_spoken() || address.closes_at_unknown(),
            ["AUTH"] => false,
            _ => self.keeps_locks(),
        };
        if matches!(failure, Failure::NotNow(_)) || !is_chosen_by_us {
            return Err(failure);
        }
        let may_be_chance = match asked {
            ["HELLO"] => &mut self.may_be_chance.at_greeting,
            _ => &mut self.may_be_chance.later,
        };
        if has_ended && mem::take(may_be_chance) {
            // The first end may be accidental, so the same questions are asked again.
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

    /// Refuses a node of a cluster, which has only some of the keys: companion keys may be on different nodes.
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

/// Returns the arguments of AUTH.
pub(super) fn login(credentials: &Credentials) -> Vec<Arg<'_>> {
    let user = credentials.user.as_deref();
    let words = user.into_iter().chain([&*credentials.password]);
    words.map(Text).collect()
}

/// Returns the reason why no push messages arrive, according to the reply to a subscription.
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
