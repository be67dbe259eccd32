//! The handshake, tested against servers of every behaviour.

use std::sync::Arc;

use redis::PushKind;

use super::*;
use crate::{
    backend::redis::transport::{
        address::{security::Security, url::ServerUrl},
        incoming::words_of,
        reply::error,
    },
    credentials::CredentialsProvider,
};

use Deed::{Answers, Babbles, Closes, Cuts, Hangs, Refuses, Shouts};
use Purpose::{Locks, LocksOnly, OtherCommands, Pushes, Requests};

/// The reaction of a server to a command, or to each command of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Answers,
    /// It replies with this error.
    Refuses(&'static str),
    /// It replies with a number that no command returns.
    Babbles,
    /// It closes the connection.
    Closes,
    /// It closes the connection within a reply.
    Cuts,
    /// It sends bytes that are not the protocol.
    Shouts,
    /// It does not reply in time.
    Hangs,
}

const UNKNOWN: Deed =
    Refuses("ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'me' 'hunter2'");
const LOADING: Deed = Refuses("LOADING Redis is loading the dataset in memory");
const NO_RIGHT: Deed = Refuses("NOPERM this user has no permissions to run the command");
const WRONG_PASSWORD: Deed = Refuses("WRONGPASS invalid username-password pair");

fn address(url: &str) -> Address {
    let url = ServerUrl::parse(url).expect("whole");
    Address::of(&url, &Security::default()).expect("whole")
}

fn terms(address: &Address, purpose: Purpose) -> Terms<'_> {
    Terms {
        address,
        purpose,
        is_by_sentinels: false,
        channel: "grants",
        name: "a test".to_owned(),
        written: "check:1:".to_owned(),
        within: Duration::from_secs(2),
        started: Moment::from_nanos(0),
    }
}

/// Returns the reply of a standalone server on which everything works.
fn answer(words: &[String]) -> Value {
    let text = |text: &str| Value::BulkString(text.into());
    match &*words[0] {
        "HELLO" => Value::Map(vec![(text("mode"), text("standalone"))]),
        "AUTH" | "CLIENT" | "SELECT" | "SET" => Value::Okay,
        "PING" => Value::SimpleString("PONG".to_owned()),
        "ROLE" => Value::Array(vec![text("master")]),
        "SUBSCRIBE" => Value::Push {
            kind: PushKind::Subscribe,
            data: vec![text(&words[1])],
        },
        "EVAL" => Value::Int(words[2].parse().expect("a count of keys")),
        "EVALSHA" | "DEL" => Value::Int(1),
        "XADD" => Value::Nil,
        other => panic!("unexpected command: {other}"),
    }
}

fn reply(deed: Deed, words: &[String]) -> Result<Value, NoReply> {
    match deed {
        Answers => Ok(answer(words)),
        Refuses(line) => Ok(Value::ServerError(error(line))),
        Babbles => Ok(Value::Int(7)),
        Closes => Err(NoReply::Broken("closed".into())),
        Cuts => Err(NoReply::Cut("closed".into())),
        Shouts => Err(NoReply::Nonsense),
        Hangs => Err(NoReply::Late),
    }
}

/// The messages sent on each connection.
type Sent = Vec<Vec<Vec<Vec<String>>>>;

/// Runs the handshake to completion. `server` replies to a message.
fn shake_hands(
    terms: Terms<'_>,
    credentials: Option<&Credentials>,
    mut server: impl FnMut(&[Vec<String>]) -> Result<Vec<Value>, NoReply>,
) -> (Result<Known, Failure>, Sent) {
    let (mut handshake, mut sent, now) =
        (Handshake::new(terms), Sent::new(), Moment::from_nanos(0));
    let mut step = Ok(Step::Reconnect(Duration::ZERO));
    loop {
        step = match step {
            Err(failure) => return (Err(failure), sent),
            Ok(Step::Ready(found)) => return (Ok(found), sent),
            Ok(Step::Reconnect(_)) => {
                sent.push(Vec::new());
                assert!(sent.len() < 10, "the handshake ends");
                handshake.connected(credentials.cloned(), false)
            }
            Ok(Step::Ask(message, _)) => {
                let text = |word: Vec<u8>| String::from_utf8(word).expect("text");
                let words = |words: Vec<_>| words.into_iter().map(text).collect();
                let message: Vec<Vec<String>> =
                    words_of(message.bytes()).into_iter().map(words).collect();
                let replies = server(&message);
                sent.last_mut().expect("connected").push(message);
                handshake.answered(replies, now)
            }
        };
    }
}

/// Replies like a server that always reacts in this way to these commands, and answers all others.
fn serve(deeds: &[(&str, Deed)], message: &[Vec<String>]) -> Result<Vec<Value>, NoReply> {
    let reply = |words: &Vec<String>| {
        let found = deeds.iter().find(|(name, _)| *name == words[0]);
        reply(found.map_or(Answers, |(_, deed)| *deed), words)
    };
    message.iter().map(reply).collect()
}

/// Returns the conclusion, and how many connections it took.
fn concluded(
    address: &Address,
    deeds: &[(&str, Deed)],
) -> (Result<(u8, &'static str, bool), String>, usize) {
    let (found, sent) = shake_hands(terms(address, Locks), None, |message| serve(deeds, message));
    let concluded = found.map_err(|failure| failure.text()).map(|found| {
        let protocol = if found.speaks_resp3 { 3 } else { 2 };
        let known = found.capabilities.expect("a server for locks");
        let commands = match (known.scripts, known.forwards_all) {
            (true, true) => "all",
            (true, false) => "scripts",
            (false, true) => "no scripts",
            (false, false) => "none",
        };
        let has_reason = found.not_subscribed.is_some();
        assert!(!(has_reason && found.is_subscribed), "{found:?}");
        (protocol, commands, found.is_subscribed)
    });
    (concluded, sent.len())
}

#[test]
fn the_capabilities_of_a_server_are_concluded_from_its_replies() {
    let after = Refuses("ERR Can't execute it: only (P)SUBSCRIBE allowed in this context");
    let envoy = Refuses("unsupported command");
    let other_slot = Refuses("MOVED 1 127.0.0.1:6379");
    let rows: [(&[(&str, Deed)], _, usize); 21] = [
        (&[], (3, "all", true), 1),
        (&[("HELLO", UNKNOWN)], (2, "all", false), 1),
        (&[("HELLO", Refuses("NOPROTO no"))], (2, "all", false), 1),
        (
            &[("HELLO", Refuses("ERR in any words"))],
            (2, "all", false),
            1,
        ),
        (&[("HELLO", Refuses("NOAUTH first"))], (2, "all", false), 1),
        (&[("HELLO", Closes)], (2, "scripts", false), 3),
        (
            &[("HELLO", Closes), ("XADD", Closes)],
            (2, "scripts", false),
            3,
        ),
        (
            &[("HELLO", UNKNOWN), ("XADD", Closes)],
            (2, "scripts", false),
            3,
        ),
        (
            &[("HELLO", UNKNOWN), ("XADD", UNKNOWN)],
            (2, "scripts", false),
            1,
        ),
        (
            &[("HELLO", envoy), ("XADD", envoy)],
            (2, "scripts", false),
            1,
        ),
        (&[("XADD", NO_RIGHT)], (3, "all", true), 1),
        (&[("EVAL", UNKNOWN)], (3, "no scripts", false), 1),
        (&[("EVALSHA", NO_RIGHT)], (3, "no scripts", false), 1),
        (
            &[("EVAL", other_slot), ("EVALSHA", other_slot)],
            (3, "all", true),
            1,
        ),
        (
            &[("EVALSHA", Refuses("NOSCRIPT none"))],
            (3, "all", true),
            1,
        ),
        (&[("SUBSCRIBE", NO_RIGHT)], (3, "all", false), 1),
        (&[("SUBSCRIBE", Babbles)], (3, "all", false), 1),
        (&[("SUBSCRIBE", Closes)], (3, "all", false), 3),
        (&[("SUBSCRIBE", Hangs)], (3, "all", false), 2),
        (
            &[("CLIENT", UNKNOWN), ("DEL", UNKNOWN)],
            (3, "all", true),
            1,
        ),
        (
            &[("HELLO", UNKNOWN), ("SET", NO_RIGHT)],
            (2, "all", false),
            1,
        ),
    ];
    for (deeds, expected, connections) in rows {
        let concluded = concluded(&address("redis://host"), deeds);
        assert_eq!(concluded, (Ok(expected), connections), "{deeds:?}");
    }
    // Some servers accept no other command after a subscription.
    let address = address("redis://host");
    let (found, sent) = shake_hands(terms(&address, Locks), None, |message| {
        let is_subscribing = message.iter().any(|words| words[0] == "SUBSCRIBE");
        let deed = if is_subscribing { after } else { Answers };
        serve(
            &["EVAL", "EVALSHA", "XADD"].map(|name| (name, deed)),
            message,
        )
    });
    let found = found.expect("without grants");
    assert!(found.capabilities.is_some_and(|known| known.scripts) && !found.is_subscribed);
    assert_eq!(sent.len(), 2);
}

#[test]
fn an_unsuitable_server_is_refused_and_an_unavailable_one_is_not_asked_again() {
    let both = [("EVAL", UNKNOWN), ("XADD", UNKNOWN), ("HELLO", UNKNOWN)];
    let rows: [(&[(&str, Deed)], &str); 8] = [
        (&both, "has no streams"),
        (
            &[("EVAL", Refuses("ERR broken")), ("HELLO", UNKNOWN)],
            "ERR broken",
        ),
        (&[("HELLO", LOADING)], "LOADING"),
        (&[("SUBSCRIBE", LOADING)], "LOADING"),
        (&[("EVAL", LOADING)], "LOADING"),
        (&[("HELLO", Babbles)], "does not speak the Redis protocol"),
        (&[("HELLO", Shouts)], "does not speak the Redis protocol"),
        (
            &[("HELLO", UNKNOWN), ("EVAL", Refuses("NOAUTH first"))],
            "user or password",
        ),
    ];
    for (deeds, words) in rows {
        let (refused, connections) = concluded(&address("redis://host"), deeds);
        let why = refused.expect_err("the server is refused");
        assert!(why.contains(words), "{deeds:?}: {why}");
        assert_eq!(connections, 1, "{deeds:?}");
    }
}

#[test]
fn a_proxy_that_silently_spreads_keys_over_servers_is_detected() {
    let address = address("redis://host?protocol=2");
    let (found, _) = shake_hands(terms(&address, Requests), None, |message| {
        let mut replies = serve(&[], message)?;
        for (words, reply) in message.iter().zip(&mut replies) {
            if words[1] == COUNT {
                *reply = Value::Int(3);
            }
        }
        Ok(replies)
    });
    let known = found.expect("a connection").capabilities;
    assert!(known.is_some_and(|known| known.scripts && !known.forwards_all));
}

/// The findings about a proxy are forgotten once the proxy is replaced.
#[test]
fn each_connection_asks_again_and_believes_a_known_proxy_at_once() {
    let (address, closes) = (
        address("redis://host"),
        [("HELLO", Closes), ("XADD", Closes)],
    );
    for connections in [3, 2, 2] {
        let concluded = concluded(&address, &closes);
        assert_eq!(concluded, (Ok((2, "scripts", false)), connections));
    }
    for _ in 0..2 {
        assert_eq!(concluded(&address, &[]), (Ok((3, "all", true)), 1));
    }
    // A server that has answered everything is only unavailable.
    let (refused, connections) = concluded(&address, &[("HELLO", Closes)]);
    assert!(refused.is_err_and(|why| why.contains("closed")));
    assert_eq!(connections, 1);
}

#[test]
fn a_node_of_a_cluster_and_a_replica_are_distinguished_from_a_primary() {
    let (address, text) = (address("redis://host"), |text: &str| {
        Value::BulkString(text.into())
    });
    let cluster = Value::Map(vec![(text("mode"), text("cluster"))]);
    let replica = Value::Array(vec![text("slave")]);
    for (purpose, is_by_sentinels, name, reply, expected) in [
        (Locks, false, "HELLO", &cluster, Some("node of a cluster")),
        (LocksOnly, false, "HELLO", &cluster, None),
        (Locks, true, "ROLE", &replica, Some("is a replica")),
        (OtherCommands, true, "ROLE", &replica, Some("is a replica")),
        (Locks, true, "ROLE", &Value::Int(1), None),
    ] {
        let terms = Terms {
            is_by_sentinels,
            ..terms(&address, purpose)
        };
        let (found, _) = shake_hands(terms, None, |message| {
            let own = |words: &Vec<String>| {
                let is_it = words[0] == name;
                if is_it { reply.clone() } else { answer(words) }
            };
            Ok(message.iter().map(own).collect())
        });
        match (found, expected) {
            (Ok(_), None) => {}
            (Err(failure), Some(why)) => assert!(failure.text().contains(why), "{failure:?}"),
            (found, _) => panic!("{name}: {found:?}"),
        }
    }
}

/// Enumerates all servers that react with something other than an answer to up to this many messages.
struct Servers {
    /// The reaction of this server to each message, as an index into `DEEDS`.
    deeds: Vec<usize>,
    at: usize,
    faults: usize,
}

const DEEDS: [Deed; 9] = [
    Answers,
    UNKNOWN,
    LOADING,
    NO_RIGHT,
    WRONG_PASSWORD,
    Babbles,
    Closes,
    Cuts,
    Hangs,
];

impl Servers {
    fn of(faults: usize) -> Self {
        Self {
            deeds: Vec::new(),
            at: 0,
            faults,
        }
    }

    fn deed(&mut self) -> Deed {
        if self.at == self.deeds.len() {
            self.deeds.push(0);
        }
        self.at += 1;
        DEEDS[self.deeds[self.at - 1]]
    }

    /// Returns `true` if there is another server.
    fn advance(&mut self) -> bool {
        self.at = 0;
        while let Some(last) = self.deeds.pop() {
            let faults = self.deeds.iter().filter(|deed| **deed != 0).count();
            if last + 1 < DEEDS.len() && faults < self.faults {
                self.deeds.push(last + 1);
                return true;
            }
        }
        false
    }
}

#[test]
fn no_server_makes_a_handshake_endless_unauthenticated_or_talkative() {
    let credentials = Credentials::new("me", "hunter2");
    for url in ["redis://host/1", "redis://host/1?protocol=2"] {
        for credentials in [None, Some(&credentials)] {
            for purpose in [Locks, LocksOnly, Requests, Pushes, OtherCommands] {
                let mut servers = Servers::of(3);
                loop {
                    any_server(&address(url), purpose, credentials, &mut servers);
                    if !servers.advance() {
                        break;
                    }
                }
            }
        }
    }
}

fn any_server(
    address: &Address,
    purpose: Purpose,
    credentials: Option<&Credentials>,
    servers: &mut Servers,
) {
    let mut deeds = Vec::new();
    let (result, sent) = shake_hands(terms(address, purpose), credentials, |message| {
        let deed = servers.deed();
        deeds.push(deed);
        message.iter().map(|words| reply(deed, words)).collect()
    });
    let context = || format!("{address:?} {purpose:?} {deeds:?}: {sent:?} {result:?}");
    let mut last = deeds.len();
    for messages in sent.iter().rev() {
        // The greeting, the password if the greeting did not carry it, and the questions.
        let names: Vec<&str> = messages.iter().map(|message| &*message[0][0]).collect();
        let deeds = &deeds[last - messages.len()..last];
        last -= messages.len();
        let greeting = names.iter().position(|name| *name == "HELLO");
        assert!(matches!(greeting, None | Some(0)), "{}", context());
        let speaks_resp3 = greeting.is_some() && deeds.first() == Some(&Answers);
        let password = names.iter().position(|name| *name == "AUTH");
        let follows = names.len() > usize::from(greeting.is_some());
        let expected = (follows && credentials.is_some() && !speaks_resp3)
            .then_some(usize::from(greeting.is_some()));
        assert_eq!(password, expected, "{}", context());
        let logged_in = password.is_none_or(|at| names.len() == at + 1 || deeds[at] == Answers);
        assert!(logged_in, "{}", context());
        assert!(names.len() <= 4, "{}", context());
    }
    // The server's reaction to the first such command on the last connection.
    let messages = sent.last().into_iter().flatten();
    let first = deeds.len() - messages.clone().count();
    let did = |name: &str| {
        let mut last = messages.clone().zip(&deeds[first..]);
        let asked = last.find(|(message, _)| message.iter().any(|words| words[0] == name));
        asked.map(|(_, deed)| *deed)
    };
    let is_shown = |is_found: bool, name| !is_found || did(name) == Some(Answers);
    match &result {
        Ok(found) => {
            assert!(is_shown(found.speaks_resp3, "HELLO"), "{}", context());
            assert!(is_shown(found.is_subscribed, "SUBSCRIBE"), "{}", context());
            let keeps_locks = !matches!(purpose, Pushes | OtherCommands);
            assert_eq!(found.capabilities.is_some(), keeps_locks, "{}", context());
            if let Some(known) = found.capabilities {
                assert!(is_shown(known.scripts, "EVALSHA"), "{}", context());
                let has_streams = matches!(did("XADD"), Some(Answers | NO_RIGHT));
                assert!(!known.forwards_all || has_streams, "{}", context());
            }
        }
        Err(failure) => {
            assert!(!failure.text().contains("hunter2"), "{}", context());
            let is_refused = deeds.last() != Some(&Answers) || purpose == Pushes;
            assert!(is_refused, "{}", context());
        }
    }
    // A temporary refusal is not retried at once, but an end that may be accidental is.
    let passes = deeds.iter().position(|deed| *deed == LOADING);
    assert!(
        passes.is_none_or(|at| at + 1 == deeds.len()),
        "{}",
        context()
    );
    let faults = deeds.iter().filter(|deed| **deed != Answers).count();
    let closed = deeds.iter().position(|deed| *deed == Closes);
    if let (1, Some(at), Locks) = (faults, closed, purpose) {
        let message = sent.iter().flatten().nth(at).expect("the command was sent");
        assert_eq!(result.is_ok(), message[0][0] != "AUTH", "{}", context());
    }
}

#[test]
fn a_provider_is_asked_again_three_times_while_there_is_time() {
    let provider = || async { Ok::<_, std::io::Error>(Credentials::new("me", "hunter2")) };
    let provider: Arc<dyn CredentialsProvider> = Arc::new(provider);
    let address = address("redis://host").for_manager(Some(&provider), None);
    let credentials = Credentials::new("me", "hunter2");
    let deeds = [("HELLO", WRONG_PASSWORD)];
    for (within, connections) in [(2_000, 4), (400, 3), (50, 1)] {
        let terms = Terms {
            within: Duration::from_millis(within),
            ..terms(&address, Locks)
        };
        let (refused, sent) =
            shake_hands(terms, Some(&credentials), |message| serve(&deeds, message));
        let failure = refused.expect_err("the password is wrong");
        assert!(errors::is_for_credentials(&failure), "{failure:?}");
        assert_eq!(sent.len(), connections, "{within}");
    }
}
