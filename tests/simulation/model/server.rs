//! A server: its clients, its scripts and its commands.

use std::collections::{BTreeMap, BTreeSet};

use lock_tests::take_request;

use super::{protocol::Reply, script, store::Store};
use crate::network::Data;

type Bytes = Vec<u8>;

/// The commands that a server supports, or that a user may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Redis 7: scripts, and RESP3.
    #[default]
    Scripts,
    /// Redis 7 behind a proxy that speaks RESP2 only.
    Resp2,
    /// A user without the right to run scripts.
    Watch,
}

impl Dialect {
    pub(crate) fn has_scripts(self) -> bool {
        matches!(self, Self::Scripts | Self::Resp2)
    }
}

/// A running server, with its data.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    pub(crate) store: Store,
    pub(crate) dialect: Dialect,
    /// A random id that is new after each start.
    pub(crate) run_id: String,
    /// The time of the start, by the server's clock.
    pub(crate) started_us: i64,
    /// The loaded scripts, by hash.
    scripts: BTreeMap<String, Bytes>,
    clients: BTreeMap<u64, Client>,
    /// The output for clients, in order.
    outbox: Vec<(u64, Bytes)>,
}

/// One connection, from the server's side.
#[derive(Clone, Debug, Default)]
struct Client {
    input: Bytes,
    resp3: bool,
    channels: BTreeSet<Bytes>,
    watched: Vec<(Bytes, u64)>,
    /// The commands queued since `MULTI`.
    transaction: Option<Vec<Vec<Bytes>>>,
}

impl Server {
    pub(crate) fn connect(&mut self, client: u64) {
        self.clients.insert(client, Client::default());
    }

    pub(crate) fn disconnect(&mut self, client: u64) {
        self.clients.remove(&client);
    }

    /// Ends the server's process and starts another one.
    pub(crate) fn restart(&mut self, run_id: String, now_us: i64, data: Data) {
        let store = match data {
            Data::Kept => std::mem::take(&mut self.store),
            Data::Lost => Store::default(),
        };
        *self = Self {
            store,
            dialect: self.dialect,
            run_id,
            started_us: now_us,
            ..Self::default()
        };
    }

    /// Receives bytes from a client. Returns the bytes for each client, in order.
    pub(crate) fn receive(&mut self, client: u64, bytes: &[u8], now_us: i64) -> Vec<(u64, Bytes)> {
        // The client has gone, or was connected before a restart.
        let Some(known) = self.clients.get_mut(&client) else {
            return Vec::new();
        };
        known.input.extend_from_slice(bytes);
        while let Some(words) = self
            .clients
            .get_mut(&client)
            .and_then(|client| take_request(&mut client.input))
        {
            let reply = self.execute(client, &words, now_us);
            self.send(client, &reply);
        }
        std::mem::take(&mut self.outbox)
    }

    /// Runs a script, which need not be loaded. Returns its reply, and the bytes for each client.
    pub(crate) fn run_script(
        &mut self,
        script: (&str, &[u8]),
        keys: &[Bytes],
        arguments: &[Bytes],
        now_us: i64,
    ) -> (Reply, Vec<(u64, Bytes)>) {
        let reply = script::run(self, script.0, script.1, keys, arguments, now_us);
        (reply, std::mem::take(&mut self.outbox))
    }

    /// Adds a client that is subscribed to a channel.
    pub(crate) fn listen(&mut self, client: u64, channel: &[u8]) {
        self.connect(client);
        let _confirmed = self.subscribe(client, channel);
    }

    /// Executes a plain command without a client.
    pub(crate) fn command(&mut self, words: &[&str], now_us: i64) -> Reply {
        let words: Vec<Bytes> = words.iter().map(|word| Bytes::from(*word)).collect();
        self.execute_in_script(&words, now_us)
    }

    /// Executes a command that a script may use.
    pub(crate) fn execute_in_script(&mut self, words: &[Bytes], now_us: i64) -> Reply {
        let (name, words) = name_of(words);
        match name.as_str() {
            "TIME" => time(now_us),
            "PUBLISH" => self.publish(words),
            _ => {
                let known = self.store.execute(&name, words, now_us);
                known.unwrap_or_else(|| unknown(&name))
            }
        }
    }

    fn send(&mut self, client: u64, reply: &Reply) {
        let Some(known) = self.clients.get(&client) else {
            return;
        };
        let mut bytes = Bytes::new();
        reply.write(&mut bytes, known.resp3);
        match self.outbox.last_mut() {
            Some((last, more)) if *last == client => more.extend(bytes),
            _ => self.outbox.push((client, bytes)),
        }
    }

    fn execute(&mut self, client: u64, words: &[Bytes], now_us: i64) -> Reply {
        let all = words;
        let (name, words) = name_of(words);
        if let Some(transaction) = &mut self.client(client).transaction
            && !matches!(name.as_str(), "EXEC" | "DISCARD" | "MULTI" | "WATCH")
        {
            transaction.push(all.to_vec());
            return Reply::Status("QUEUED");
        }
        let scripts = self.dialect.has_scripts();
        match name.as_str() {
            "PING" => match words.first() {
                Some(text) => Reply::Bulk(text.clone()),
                None => Reply::Status("PONG"),
            },
            "HELLO" => self.hello(client),
            "SUBSCRIBE" => self.subscribe(client, &words[0]),
            "INFO" => self.info(now_us),
            "EVAL" | "EVALSHA" if !scripts => Reply::error(format!(
                "NOPERM this user has no permissions to run the '{}' command",
                name.to_lowercase()
            )),
            "EVAL" => {
                let hash = hash_of(&words[0]);
                self.scripts.insert(hash.clone(), words[0].clone());
                self.evaluate(&hash, &words[1..], now_us)
            }
            "EVALSHA" => {
                let hash = String::from_utf8_lossy(&words[0]).into_owned();
                self.evaluate(&hash, &words[1..], now_us)
            }
            "WATCH" => self.watch(client, words, now_us),
            "UNWATCH" => {
                self.client(client).watched.clear();
                Reply::Status("OK")
            }
            "MULTI" => match &mut self.client(client).transaction {
                Some(_) => Reply::error("ERR MULTI calls can not be nested"),
                none => {
                    *none = Some(Vec::new());
                    Reply::Status("OK")
                }
            },
            "DISCARD" => {
                self.client(client).watched.clear();
                match self.client(client).transaction.take() {
                    Some(_) => Reply::Status("OK"),
                    None => Reply::error("ERR DISCARD without MULTI"),
                }
            }
            "EXEC" => self.commit(client, now_us),
            _ => self.execute_in_script(all, now_us),
        }
    }

    fn client(&mut self, client: u64) -> &mut Client {
        self.clients.get_mut(&client).expect("a connected client")
    }

    fn hello(&mut self, client: u64) -> Reply {
        if self.dialect == Dialect::Resp2 {
            return unknown("HELLO");
        }
        self.client(client).resp3 = true;
        Reply::Map(vec![
            (Reply::text("server"), Reply::text("redis")),
            (Reply::text("version"), Reply::text("7.0.15")),
            (Reply::text("proto"), Reply::Int(3)),
            (Reply::text("mode"), Reply::text("standalone")),
            (Reply::text("role"), Reply::text("master")),
        ])
    }

    fn subscribe(&mut self, client: u64, channel: &[u8]) -> Reply {
        let channels = &mut self.client(client).channels;
        channels.insert(channel.to_vec());
        let count = i64::try_from(channels.len()).expect("a few");
        Reply::Push(vec![
            Reply::text("subscribe"),
            Reply::Bulk(channel.to_vec()),
            Reply::Int(count),
        ])
    }

    fn publish(&mut self, words: &[Bytes]) -> Reply {
        let [channel, message] = words else {
            return Reply::error("ERR wrong number of arguments for 'publish' command");
        };
        let listens = |client: &&u64| self.clients[*client].channels.contains(channel);
        let listeners: Vec<u64> = self.clients.keys().filter(listens).copied().collect();
        let push = Reply::Push(vec![
            Reply::text("message"),
            Reply::Bulk(channel.clone()),
            Reply::Bulk(message.clone()),
        ]);
        for listener in &listeners {
            self.send(*listener, &push);
        }
        Reply::Int(i64::try_from(listeners.len()).expect("a few"))
    }

    fn info(&self, now_us: i64) -> Reply {
        // Like a server, this takes the difference of two whole seconds.
        let uptime = now_us / 1_000_000 - self.started_us / 1_000_000;
        Reply::Bulk(
            format!(
                "# Server\r\nredis_version:7.0.15\r\nrun_id:{}\r\nserver_time_usec:{now_us}\r\n\
                 uptime_in_seconds:{uptime}\r\n",
                self.run_id
            )
            .into(),
        )
    }

    fn evaluate(&mut self, hash: &str, words: &[Bytes], now_us: i64) -> Reply {
        let Some(text) = self.scripts.get(hash).cloned() else {
            return Reply::error("NOSCRIPT No matching script. Please use EVAL.");
        };
        let count = String::from_utf8_lossy(&words[0]);
        let count: usize = count.parse().expect("the number of keys");
        let (keys, arguments) = words[1..].split_at(count);
        script::run(self, hash, &text, keys, arguments, now_us)
    }

    fn watch(&mut self, client: u64, keys: &[Bytes], now_us: i64) -> Reply {
        if self.client(client).transaction.is_some() {
            return Reply::error("ERR WATCH inside MULTI is not allowed");
        }
        for key in keys {
            // A key that has expired is removed first.
            let _gone = self
                .store
                .execute("PTTL", std::slice::from_ref(key), now_us);
            let changes = self.store.changes_of(key);
            self.client(client).watched.push((key.clone(), changes));
        }
        Reply::Status("OK")
    }

    fn commit(&mut self, client: u64, now_us: i64) -> Reply {
        let watched = std::mem::take(&mut self.client(client).watched);
        let Some(commands) = self.client(client).transaction.take() else {
            return Reply::error("ERR EXEC without MULTI");
        };
        for (key, _) in &watched {
            self.store.expire(key, now_us);
        }
        let is_changed = |(key, changes): &(Bytes, u64)| self.store.changes_of(key) != *changes;
        if watched.iter().any(is_changed) {
            return Reply::Nil;
        }
        let done = commands
            .iter()
            .map(|words| self.execute_in_script(words, now_us));
        Reply::Array(done.collect())
    }
}

fn name_of(words: &[Bytes]) -> (String, &[Bytes]) {
    let (name, words) = words.split_first().expect("a command");
    (String::from_utf8_lossy(name).to_uppercase(), words)
}

fn unknown(name: &str) -> Reply {
    Reply::error(format!(
        "ERR unknown command '{name}', with args beginning with: "
    ))
}

fn time(now_us: i64) -> Reply {
    let text = |number: i64| Reply::text(&number.to_string());
    Reply::Array(vec![text(now_us / 1_000_000), text(now_us % 1_000_000)])
}

fn hash_of(text: &[u8]) -> String {
    sha1_smol::Sha1::from(text).digest().to_string()
}
