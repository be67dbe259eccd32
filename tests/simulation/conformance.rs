//! Compares the modelled server with a real one: both get the same commands at the same times, and must send the same replies.
//!
//! The clock of the real server is stopped, and moved forward between commands.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use lock_tests::{
    Kind, RedisServer, ShiftedClock, frames,
    scripts::{
        ACQUIRE, FORCE_RELEASE, INSPECT, MARK, PROPOSE, RELEASE, RELEASE_UNCONTENDED, RENEW,
    },
};
use redis::{PushKind, Value};

use crate::{chance::Chance, model::Server};

const SEEDS: u64 = 8;
const COMMANDS: usize = 1000;

/// A script that runs any command, whose reply it sees as in RESP2.
const ANY: &str = "return redis.call(unpack(ARGV))";

/// The number of clients. The first two speak RESP3, and subscribe to a channel each.
const CLIENTS: usize = 3;

/// The time of the first command in microseconds since 1970, in 2026.
const START_US: i64 = 1_790_000_000_000_000;

#[test]
fn the_modelled_server_replies_like_a_real_one() {
    for seed in 0..SEEDS {
        let mut pair = Pair::start(Kind::Distribution);
        let mut chance = Chance::new(seed);
        let mut log = Vec::new();
        for _ in 0..COMMANDS {
            for (client, command) in Command::some(&mut chance, pair.now_us) {
                log.push(format!("{client}: {:?}", command.shown()));
                let (modelled, answered) = pair.ask(client, &command.0);
                assert!(
                    are_alike(&modelled, &answered),
                    "seed {seed}, after\n{}\nthe model replies {modelled:?}\na server replies {answered:?}",
                    log[log.len().saturating_sub(12)..].join("\n")
                );
                pair.now_us += any_pause_us(&mut chance);
            }
        }
    }
}

struct Command(Vec<String>);

impl Command {
    /// Draws a command, or those of a transaction, each with the client that sends it.
    fn some(chance: &mut Chance, now_us: i64) -> Vec<(usize, Self)> {
        let client = chance.index(CLIENTS);
        match chance.below(10) {
            0..4 => vec![(client, Self::plain(chance))],
            4 => Self::transaction(chance, client),
            5 => vec![(client, Self::of_sets(chance, now_us))],
            _ => vec![(client, Self::script(chance, now_us))],
        }
    }

    fn of(words: &[&str]) -> Self {
        Self(words.iter().map(|word| (*word).to_owned()).collect())
    }

    fn shown(&self) -> Vec<String> {
        let short = |word: &String| word.chars().take(60).collect();
        self.0.iter().map(short).collect()
    }

    fn plain(chance: &mut Chance) -> Self {
        // Most keys have the type that the command needs.
        let key = match chance.below(10) {
            0 => any_key(chance),
            _ => chance.pick(&["lock", "lock", "lock", "clock", "fence", "mark", "other"]),
        };
        let (value, ttl) = (any_value(chance), any_ttl(chance));
        let id = chance.pick(&["1700000000000-5", "1700000000000-2050", "9000000000000-7"]);
        let channel = chance.pick(&["__lock_core__:grants:A", "nobody"]);
        let words: &[&str] = match chance.below(20) {
            0 => &["SET", key, &value, "NX", "PX", ttl],
            1 => &["SET", key, &value, "PX", ttl],
            2 => &["SET", key, &value, "NX"],
            3 => &["SET", key, &value],
            4 => &["GET", key],
            5 => &["MGET", key, "lock", "clock", "none"],
            6 => &["DEL", key],
            7 => &["EXISTS", key, "lock"],
            8 => &["XADD", key, "MAXLEN", "0", "*", "", ""],
            9 => &["PTTL", key],
            10 => &["PEXPIRE", key, ttl],
            11 => &["XADD", key, "MAXLEN", "0", id, "", ""],
            12 => &["PING"],
            13 => &["PUBLISH", channel, &value],
            14 => &["SET", key, &value, "PX", "0"],
            15 => &["SET", key, &value, "KEEPTTL"],
            16 => &["DEL", "lock", "queue", "clock"],
            17 => &["DEL", "queue", "lock"],
            _ => &["EXISTS", key],
        };
        Self::of(words)
    }

    /// Draws a command that only scripts use, most of them on sorted sets.
    fn of_sets(chance: &mut Chance, now_us: i64) -> Self {
        let key = chance.pick(&["queue", "holders", "beats", "holders", "other", "lock"]);
        let (value, another) = (any_value(chance), any_value(chance));
        let mut score = || {
            let open = chance.pick(&["", "", "("]);
            let score = chance.pick(&[
                "0",
                "5",
                "1700000000000",
                "1700000000000000",
                "7000000000000000",
            ]);
            (format!("{open}{score}"), score)
        };
        let ((from, plain), (to, greater)) = (score(), score());
        let from = if chance.permille(300) { "-inf" } else { &from };
        let to = if chance.permille(300) { "+inf" } else { &to };
        let in_an_hour = (now_us / 1000 + 3_600_000).to_string();
        let count = chance.pick(&["0", "1", "2", "-1"]);
        let words: &[&str] = match chance.below(19) {
            0 | 1 => &["ZADD", key, plain, &value, greater, &another],
            2 => &["ZADD", key, "GT", plain, &value, greater, &another],
            3 => &["ZADD", key, "NX", plain, &value, greater, &another],
            4 => &["ZREM", key, &value, &another],
            5 => &["ZADD", key, "XX", "LT", plain, &value, greater, &another],
            6 => &["ZPOPMIN", key],
            7 => &["ZCARD", key],
            8 => &["ZRANGE", key, "0", "-1"],
            9 => &["ZREMRANGEBYSCORE", key, "-inf", to],
            10 => &["ZSCORE", key, &value],
            11 => &["ZCOUNT", key, from, to],
            12 => &["ZRANGEBYSCORE", key, from, to, "LIMIT", "0", count],
            13 => &[
                "ZRANGEBYSCORE",
                key,
                from,
                to,
                "WITHSCORES",
                "LIMIT",
                "0",
                count,
            ],
            14 => &["ZRANGEBYSCORE", key, from, to],
            15 => &["ZREVRANGE", key, "0", count, "WITHSCORES"],
            16 => &["ZRANGE", key, "0", count, "WITHSCORES"],
            17 => &["PEXPIREAT", key, chance.pick(&[&in_an_hour, "1"])],
            _ => &[
                "SET",
                key,
                &value,
                "PXAT",
                chance.pick(&[&in_an_hour, "1", "0"]),
            ],
        };
        let declared = [
            "EVAL", ANY, "6", "queue", "holders", "beats", "other", "lock", "seats",
        ];
        Self::of(&[&declared[..], words].concat())
    }

    fn transaction(chance: &mut Chance, client: usize) -> Vec<(usize, Self)> {
        let key = any_key(chance);
        let mut all = vec![(client, Self::of(&["WATCH", key]))];
        if chance.permille(400) {
            // The command of the other client may change the key.
            all.push(((client + 1) % CLIENTS, Self::plain(chance)));
        }
        let within = chance.pick(&[
            &["DEL", "lock"][..],
            &["PEXPIRE", "lock", "60000"],
            &["GET", "queue"],
            &["SET", "lock", "lc1:h/1:aa", "PX", "60000"],
        ]);
        let last = chance.pick(&["EXEC", "EXEC", "EXEC", "DISCARD"]);
        for words in [&["MULTI"][..], within, &[last], &[last], &["UNWATCH"]] {
            all.push((client, Self::of(words)));
        }
        all
    }

    fn script(chance: &mut Chance, now_us: i64) -> Self {
        let token = any_token(chance);
        let ttl = any_ttl(chance);
        let known = chance.pick(&["0", "0", "1", "9000000000000000"]);
        let count = chance.pick(&["1", "1", "64"]);
        let mode = chance.pick(&["try", "wait", "wait", "0", "1700000000000000"]);
        let entry = any_entry(chance);
        let lock = if chance.permille(50) { "queue" } else { "lock" };
        let keep = chance.pick(&["0", "0", ttl]);
        let all = [
            "8", lock, "clock", "queue", "beats", "holders", "seats", "result", "asked",
        ];
        // While its slot is moving, an exclusive request declares the first four keys.
        let few = ["4", lock, "clock", "queue", "beats"];
        let exclusive = if chance.permille(100) { &few[..] } else { &all };
        let few_non_exclusive = ["3", lock, "holders", "seats"];
        let kind = chance.pick(&["s", "s", "s", "2", "3", "o"]);
        let non_exclusive = format!("{} {kind}", entry.strip_suffix(" x").expect("exclusive"));
        let release = [token, known, keep, entry];
        let renew = [token, ttl, known, "1"];
        let acquire = [token, ttl, known, count, mode, entry, "200"];
        let (text, keys, arguments): (_, &[&str], &[&str]) = match chance.below(26) {
            0..4 => (ACQUIRE, exclusive, &acquire[..chance.pick(&[6, 6, 7])]),
            4..8 => (RELEASE, exclusive, &release[..chance.pick(&[2, 2, 3, 4])]),
            8 => (RENEW, &all, &[token, ttl, known, "1"]),
            9 => (FORCE_RELEASE, &all, &[known]),
            10 => (RENEW, &["1", lock], &renew[..chance.pick(&[2, 2, 4])]),
            11 => (INSPECT, &all, &[chance.pick(&["0", "1", "3"])]),
            14..18 => (
                ACQUIRE,
                &all,
                &[token, ttl, known, "1", mode, &non_exclusive],
            ),
            18..21 => (RELEASE, &all, &[token, known, keep, &non_exclusive]),
            21 => (
                RENEW,
                chance.pick(&[&all[..], &all, &few_non_exclusive]),
                &[token, "70000", known, "0", &non_exclusive],
            ),
            22 => (RELEASE_UNCONTENDED, &["2", lock, "queue"], &[token]),
            23 => (
                RELEASE_UNCONTENDED,
                &["4", lock, "other", "queue", "beats"],
                &[token, any_token(chance)],
            ),
            24..26 => (
                RELEASE,
                &all,
                &[token, known, "0", &non_exclusive, "a result", ttl],
            ),
            12 => (
                MARK,
                &["2", "marker", "fence"],
                &[
                    chance.pick(&["run", "run", "run", "other"]),
                    "name",
                    chance.pick(&["", "run:name:"]),
                    chance.pick(&["0", "7", "40", "125000"]),
                ],
            ),
            _ => return Self::proposal(chance, now_us, token, ttl),
        };
        Self::call(chance, text, keys, arguments)
    }

    fn proposal(chance: &mut Chance, now_us: i64, token: &str, ttl: &str) -> Self {
        let ahead = chance.pick(&[-5_000_000, -300_000, 300_000, 300_000, 5_000_000]);
        let number = ((now_us + ahead) * 2048 / 1000).to_string();
        let count = chance.pick(&["1", "64"]);
        let must = chance.pick(&["free", "own"]);
        let asker = chance.pick(&["one", "other"]);
        let mark = chance.pick(&["0", "60000"]);
        let marker = chance.pick(&["", "", "run:", "run:name:"]);
        let arguments = [token, ttl, &number, count, must, asker, mark, marker];
        Self::call(
            chance,
            PROPOSE,
            &["4", "lock", "fence", "mark", "marker"],
            &arguments,
        )
    }

    /// Calls a script by its text, or by its hash.
    fn call(chance: &mut Chance, text: &str, keys: &[&str], arguments: &[&str]) -> Self {
        let hash = sha1_smol::Sha1::from(text).digest().to_string();
        let name: [&str; 2] = if chance.permille(500) {
            ["EVALSHA", &hash]
        } else {
            ["EVAL", text]
        };
        Self::of(&[&name[..], keys, arguments].concat())
    }
}

/// Draws the time until the next command, in which most leases last, some end, and some requests in the queue become silent.
fn any_pause_us(chance: &mut Chance) -> i64 {
    chance.pick(&[
        0, 0, 0, 0, 1, 300, 300, 300, 1_000, 2_000, 2_000, 8_000, 90_000,
    ])
}

fn any_key(chance: &mut Chance) -> &'static str {
    chance.pick(&[
        "lock", "lock", "clock", "queue", "queue", "beats", "holders", "seats", "result", "mark",
        "other",
    ])
}

fn any_token(chance: &mut Chance) -> &'static str {
    chance.pick(&["lc1:h/1:aa", "lc1:h/1:aa", "lc1:h/2:bb", "foreign"])
}

/// Draws a queue entry. The last process has gone.
fn any_entry(chance: &mut Chance) -> &'static str {
    chance.pick(&[
        "A 1 60000 x",
        "B 1 60000 x",
        "B 2 60000 x",
        "gone 3 60000 x",
    ])
}

/// Draws a ttl, most often a long one.
fn any_ttl(chance: &mut Chance) -> &'static str {
    chance.pick(&["2", "200000", "60000", "60000", "60000", "60000", "60000"])
}

fn any_value(chance: &mut Chance) -> String {
    let token = any_token(chance);
    let entry = any_entry(chance);
    match chance.below(5) {
        0 => "7".to_owned(),
        1 => token.to_owned(),
        2 | 3 => format!("{entry} {token}"),
        _ => "x y".to_owned(),
    }
}

/// The two servers, with the same clients.
struct Pair {
    model: Server,
    streams: Vec<TcpStream>,
    /// The time on the clocks of both servers.
    now_us: i64,
    clock: ShiftedClock,
    _real: RedisServer,
}

/// The replies and messages for each client.
type Replies = Vec<Vec<Value>>;

impl Pair {
    fn start(kind: Kind) -> Self {
        let clock = ShiftedClock::new();
        let real = RedisServer::builder().kind(kind).clock(&clock).start();
        let connect = |_| TcpStream::connect(("127.0.0.1", real.port())).expect("it listens");
        let mut pair = Self {
            model: Server::default(),
            streams: (0..CLIENTS).map(connect).collect(),
            now_us: START_US,
            clock,
            _real: real,
        };
        for client in 0..CLIENTS {
            pair.model.connect(client as u64);
        }
        for (client, channel) in ["A", "B"].into_iter().enumerate() {
            let _greeting = pair.ask(client, &["HELLO".into(), "3".into()]);
            let channel = format!("__lock_core__:grants:{channel}");
            let (one, other) = pair.ask(client, &["SUBSCRIBE".into(), channel]);
            assert!(are_alike(&one, &other), "{one:?} {other:?}");
        }
        pair
    }

    /// Sends a command to both. Returns the replies and messages for each client, up to the reply to a PING of each other client.
    fn ask(&mut self, client: usize, words: &[String]) -> (Replies, Replies) {
        let now_us = self.now_us;
        let since_epoch = u64::try_from(now_us).expect("after 1970");
        self.clock.stop_at(Duration::from_micros(since_epoch));
        let mut modelled = vec![Vec::new(); CLIENTS];
        let mut answered = vec![Vec::new(); CLIENTS];
        for to in [client]
            .into_iter()
            .chain((0..CLIENTS).filter(|other| *other != client))
        {
            // Messages of the command to another client arrive before the reply to that client's PING.
            let ping = ["PING".to_owned()];
            let request = request(if to == client { words } else { &ping });
            for (client_number, bytes) in self.model.receive(to as u64, &request, now_us) {
                modelled[usize::try_from(client_number).expect("few")].extend(parse_all(&bytes));
            }
            self.streams[to].write_all(&request).expect("open");
            answered[to].extend(self.read(to));
        }
        (modelled, answered)
    }

    /// Reads a reply, and the messages before it.
    fn read(&mut self, client: usize) -> Vec<Value> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let count = self.streams[client].read(&mut buffer).expect("open");
            assert!(count > 0, "the server closed the connection");
            bytes.extend_from_slice(&buffer[..count]);
            let all = parse_all(&bytes);
            let is_reply = |value: &Value| match value {
                Value::Push { kind, .. } => *kind == PushKind::Subscribe,
                _ => true,
            };
            if is_whole(&bytes) && all.iter().any(is_reply) {
                return all;
            }
        }
    }
}

fn request(words: &[String]) -> Vec<u8> {
    redis::cmd(&words[0]).arg(&words[1..]).get_packed_command()
}

/// Returns whether both servers send the same replies.
fn are_alike(one: &Replies, other: &Replies) -> bool {
    let mut each = one.iter().zip(other);
    one.len() == other.len() && each.all(|(one, other)| all_like(one, other))
}

fn all_like(one: &[Value], other: &[Value]) -> bool {
    let mut each = one.iter().zip(other);
    one.len() == other.len() && each.all(|(one, other)| is_like(one, other))
}

fn is_like(one: &Value, other: &Value) -> bool {
    match (one, other) {
        // Servers differ in the text after the error code.
        (Value::ServerError(one), Value::ServerError(other)) => one.code() == other.code(),
        (Value::Array(one), Value::Array(other)) => all_like(one, other),
        // Outside of scripts, RESP3 has a type for scores. The model has texts.
        (Value::BulkString(text), Value::Double(score)) => *text == score.to_string().into_bytes(),
        // A map describes the server itself (`HELLO`).
        (Value::Map(_), Value::Map(_)) => true,
        _ => one == other,
    }
}

fn parse_all(bytes: &[u8]) -> Vec<Value> {
    let frames = frames(bytes).into_iter();
    let values = frames.map(redis::parse_redis_value);
    values.map(|it| it.expect("the Redis protocol")).collect()
}

fn is_whole(bytes: &[u8]) -> bool {
    frames(bytes).concat().len() == bytes.len()
}
