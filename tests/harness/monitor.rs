//! The times at which owner tokens had locks, from the server's own record of the commands that it executes (`MONITOR`).

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    thread::JoinHandle,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    history::{Moment, Window},
    server::RedisServer,
};

/// The text that marks the end of the record.
const LAST: &str = "the last word";

/// Records all commands that a server executes, those of scripts included, until [`finish`](Self::finish).
#[derive(Debug)]
pub struct Monitor {
    reader: JoinHandle<Vec<String>>,
}

/// A span of time in which a server had an owner token in a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerHold {
    /// The full key.
    pub key: String,
    /// The owner token.
    pub token: String,
    /// The time from its write to its deletion, replacement or expiry.
    pub held: Window,
}

impl Monitor {
    /// Begins to record; no command that is executed later is missed.
    pub fn start(server: &RedisServer) -> Self {
        let mut stream =
            TcpStream::connect(("127.0.0.1", server.port())).expect("the server is up");
        stream.write_all(b"MONITOR\r\n").expect("a new connection");
        let mut lines = BufReader::new(stream);
        let mut first = String::new();
        lines.read_line(&mut first).expect("a reply");
        assert_eq!(first, "+OK\r\n");
        let reader = std::thread::spawn(move || {
            // If the connection breaks, `LAST` is missing, and `finish` notices that.
            let mut printed = Vec::new();
            for line in lines.lines().map_while(Result::ok) {
                let is_last = line.contains(LAST);
                printed.push(line);
                if is_last {
                    break;
                }
            }
            printed
        });
        Self { reader }
    }

    /// Stops, and returns the owner tokens that the server had in the keys that begin with `prefix`.
    pub fn finish(self, server: &RedisServer, prefix: &str) -> Vec<ServerHold> {
        // The server reports commands in the order of their execution.
        server.cli(&["ECHO", LAST]);
        let printed = self.reader.join().expect("a reader that does not panic");
        let is_all = printed.last().is_some_and(|line| line.contains(LAST));
        assert!(is_all, "the server closed the connection of the monitor");
        let mut keys = Keys::default();
        for line in &printed {
            let (at, words) = parse(line);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            if words.get(1).is_some_and(|key| key.starts_with(prefix)) {
                keys.execute(at, &words);
            }
        }
        keys.finish()
    }
}

/// The keys as the server has them at one point of the record.
#[derive(Debug, Default)]
struct Keys {
    now: BTreeMap<String, ServerHold>,
    past: Vec<ServerHold>,
}

impl Keys {
    fn execute(&mut self, at: Moment, words: &[&str]) {
        let key = words[1];
        let alive = self.now.get(key).is_some_and(|hold| hold.held.to > at);
        let ttl = |text: &str| Duration::from_millis(text.parse().expect("milliseconds"));
        match (words[0].to_ascii_lowercase().as_str(), &words[2..]) {
            ("set", [_, "NX", "PX", _]) if alive => {}
            ("set", [token, "NX", "PX", time] | [token, "PX", time])
            | ("psetex", [time, token]) => {
                // If the token is the same, the hold is only extended.
                let same = alive && self.now[key].token == **token;
                let from = if same { self.now[key].held.from } else { at };
                if !same {
                    self.end(key, at);
                }
                let held = Window {
                    from,
                    to: at.after(ttl(time)),
                };
                let (key, token) = (key.to_owned(), (*token).to_owned());
                self.now
                    .insert(key.clone(), ServerHold { key, token, held });
            }
            ("set", [token, "KEEPTTL"]) if alive => {
                let left = self.now[key].held.to;
                self.end(key, at);
                let (key, token) = (key.to_owned(), (*token).to_owned());
                let held = Window { from: at, to: left };
                self.now
                    .insert(key.clone(), ServerHold { key, token, held });
            }
            ("pexpire", [time]) if alive => {
                let hold = self.now.get_mut(key).expect("alive");
                hold.held.to = at.after(ttl(time));
            }
            ("del", others) => {
                for key in [&[key], others].concat() {
                    self.end(key, at);
                }
            }
            ("pexpire" | "get" | "mget" | "exists" | "pttl", _) => {}
            other => panic!("no lock is changed by {other:?}"),
        }
    }

    fn end(&mut self, key: &str, at: Moment) {
        if let Some(mut hold) = self.now.remove(key) {
            hold.held.to = hold.held.to.min(at);
            self.past.push(hold);
        }
    }

    fn finish(mut self) -> Vec<ServerHold> {
        self.past.extend(self.now.into_values());
        self.past
    }
}

/// Reads `+1700000000.123456 [0 lua] "SET" "lock:k" "a" …`.
fn parse(line: &str) -> (Moment, Vec<String>) {
    let printed = || format!("a line of MONITOR: {line}");
    let (time, rest) = line
        .trim_start_matches('+')
        .split_once(' ')
        .unwrap_or_else(|| panic!("{}", printed()));
    let (seconds, micros) = time
        .split_once('.')
        .unwrap_or_else(|| panic!("{}", printed()));
    let number = |text: &str| {
        text.parse::<u64>()
            .unwrap_or_else(|_| panic!("{}", printed()))
    };
    let unix = Duration::from_secs(number(seconds)) + Duration::from_micros(number(micros));
    let (_, rest) = rest
        .split_once("] ")
        .unwrap_or_else(|| panic!("{}", printed()));
    // No command of a lock contains a quotation mark.
    let words = rest
        .split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect();
    (of_unix(unix), words)
}

/// Converts a time since 1970 to the clock of the histories.
fn of_unix(unix: Duration) -> Moment {
    let (now, unix_now) = (Moment::now(), SystemTime::now());
    let unix_now = unix_now.duration_since(UNIX_EPOCH).expect("after 1970");
    let age = unix_now.saturating_sub(unix);
    Moment::from_nanos(0).after(now.since(Moment::from_nanos(0)).saturating_sub(age))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_token_has_a_key_until_it_is_deleted_overwritten_or_expired() {
        let mut keys = Keys::default();
        for (millis, words) in [
            (10, &["SET", "k", "a", "NX", "PX", "100"][..]),
            (20, &["SET", "k", "b", "NX", "PX", "100"]),
            (50, &["pexpire", "k", "100"]),
            (120, &["del", "k"]),
            (130, &["PSETEX", "k", "50", "b"]),
            (200, &["SET", "k", "c", "PX", "30"]),
            (210, &["SET", "k", "d", "PX", "30"]),
        ] {
            keys.execute(at(millis), words);
        }
        let held: Vec<_> = keys
            .finish()
            .into_iter()
            .map(|hold| (hold.token, hold.held.from, hold.held.to))
            .collect();
        let expected = [
            ("a", 10, 120),
            ("b", 130, 180),
            ("c", 200, 210),
            ("d", 210, 240),
        ];
        assert_eq!(
            held,
            expected.map(|(token, from, to)| (token.to_owned(), at(from), at(to)))
        );
    }

    #[test]
    fn a_line_is_split_into_its_words() {
        let (_, words) = parse(r#"+1700000000.123456 [0 127.0.0.1:4242] "SET" "lock:k" "lc1:a""#);
        assert_eq!(words, ["SET", "lock:k", "lc1:a"]);
    }
}
