//! Questions about keys, fencing clocks, queues, connections and calls.

use std::{collections::HashMap, time::Duration};

use redis::Value;

use super::RedisServer;

/// The number of fencing tokens for each millisecond of a fencing clock.
const TOKENS_PER_MS: u64 = 2048;

impl RedisServer {
    /// Returns the value of a string key.
    pub fn get(&self, key: &str) -> Option<String> {
        redis::from_redis_value(self.cli(&["GET", key])).expect("a string, or nothing")
    }

    /// Returns the last fencing token or stamp of a fencing clock, if the clock exists.
    pub fn fencing_clock(&self, clock: &str) -> Option<u64> {
        let info = self.try_cli(&["XINFO", "STREAM", clock]).ok()?;
        let info: HashMap<String, Value> = redis::from_redis_value(info).expect("names and values");
        let id: String = redis::from_redis_value(info["last-generated-id"].clone()).expect("an id");
        let (millis, sequence) = id.split_once('-').expect("an id");
        let number = |text: &str| text.parse::<u64>().expect("a number");
        Some(number(millis) * TOKENS_PER_MS + number(sequence))
    }

    /// Replaces a fencing clock by one that has just given this token.
    pub fn set_fencing_clock(&self, clock: &str, token: u64) {
        let id = format!("{}-{}", token / TOKENS_PER_MS, token % TOKENS_PER_MS);
        self.cli(&["DEL", clock]);
        self.cli(&["XADD", clock, "MAXLEN", "0", &id, "", ""]);
    }

    /// Sets strings without an expiry, 500 with each command.
    pub fn set_all(&self, keys: impl IntoIterator<Item = String>) {
        let keys: Vec<String> = keys.into_iter().collect();
        for some in keys.chunks(500) {
            let pairs = some.iter().flat_map(|key| [key.as_str(), "x"]);
            let words: Vec<&str> = ["MSET"].into_iter().chain(pairs).collect();
            self.cli(&words);
        }
    }

    /// Returns the keys that match a glob pattern, in order.
    pub fn keys(&self, pattern: &str) -> Vec<String> {
        let mut keys: Vec<String> =
            redis::from_redis_value(self.cli(&["KEYS", pattern])).expect("a list of names");
        keys.sort();
        keys
    }

    /// Returns how many connections managers have to this server, those for messages included.
    pub fn connections_of_managers(&self) -> usize {
        let of = |kind| {
            let list = self.cli(&["CLIENT", "LIST", "TYPE", kind]);
            let list: String = redis::from_redis_value(list).expect("lines of text");
            list.matches("name=lock-core:").count()
        };
        of("PUBSUB") + of("NORMAL")
    }

    /// Returns the remaining time to live of a key that exists and expires.
    pub fn pttl(&self, key: &str) -> Option<Duration> {
        self.millis("PTTL", key)
    }

    /// Returns the entries of a lock's queue, the next one first.
    pub fn queue(&self, queue: &str) -> Vec<String> {
        redis::from_redis_value(self.cli(&["ZRANGE", queue, "0", "-1"])).expect("a sorted set")
    }

    /// Returns when a key that exists and expires will do so, by the server's clock, in time since 1970. Each renewal moves it.
    ///
    /// For Redis 7.0 or later.
    pub fn expires_at(&self, key: &str) -> Option<Duration> {
        self.millis("PEXPIRETIME", key)
    }

    fn millis(&self, command: &str, key: &str) -> Option<Duration> {
        let millis: i64 = redis::from_redis_value(self.cli(&[command, key])).expect("an integer");
        // Negative: no such key, or no expiry.
        u64::try_from(millis).ok().map(Duration::from_millis)
    }

    /// Returns the time of the server's clock, since 1970.
    pub fn time(&self) -> Duration {
        let (seconds, micros): (u64, u64) =
            redis::from_redis_value(self.cli(&["TIME"])).expect("two numbers");
        Duration::from_secs(seconds) + Duration::from_micros(micros)
    }

    /// Returns how often a command was called since the server started.
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.info("commandstats");
        let name = format!("cmdstat_{}:calls=", command.to_lowercase());
        let Some(stat) = stats.lines().find_map(|line| line.strip_prefix(&name)) else {
            return 0;
        };
        let (calls, _) = stat.split_once(',').expect("calls=N,usec=...");
        calls.parse().expect("a number")
    }

    /// Returns a section of `INFO`.
    pub fn info(&self, section: &str) -> String {
        redis::from_redis_value(self.cli(&["INFO", section])).expect("text")
    }
}
