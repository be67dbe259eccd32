//! The processor time that the server spends on one call of each script.

use lock_tests::{
    RedisServer,
    scripts::{ACQUIRE, RELEASE, RELEASE_UNCONTENDED, RENEW},
};
use redis::{Connection, Pipeline, Value};

use crate::{
    cores::start_server,
    report,
    sample::{float, median},
};

/// The number of calls in one sample, small enough that the scheduler rarely interrupts the server.
const CALLS: usize = 128;
/// The most renewals that lock-core sends at once.
const BATCH: usize = 512;
const ROUNDS: usize = 60;

const HOLDER: &str = "lc1:host-a/1:11111111-2222-3333-4444-555555555555";
const WAITER: &str = "lc1:host-b/2:66666666-2222-3333-4444-555555555555";
const TTL: &str = "60000";
/// Longer, so that a renewal changes something.
const RENEWED: &str = "120000";
const GRANTS: &str = "__lock_core__:grants:bench";

/// A connection, and the hashes of the scripts that its server has loaded.
struct Bench {
    connection: Connection,
    acquire: String,
    release: String,
    release_uncontended: String,
    renew: String,
}

/// Returns KEYS[1] to KEYS[7] of `acquire.lua` and `release.lua`.
fn all_keys(lock: &str) -> Vec<String> {
    let companion = |name: &str| format!("__lock_core__:{name}:{lock}");
    vec![
        lock.to_owned(),
        "__lock_core__:clock".to_owned(),
        companion("waiters"),
        companion("beats"),
        companion("holders"),
        companion("seats"),
        companion("result"),
    ]
}

/// Returns the keys of `release_uncontended.lua` for one lock.
fn lock_and_queue(lock: &str) -> Vec<String> {
    vec![lock.to_owned(), format!("__lock_core__:waiters:{lock}")]
}

fn locks(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("lock:bench:{number}"))
}

impl Bench {
    fn new(server: &RedisServer) -> Self {
        let mut connection = connect(server);
        let mut load = |text: &str| {
            let mut load = redis::cmd("SCRIPT");
            let hash = load.arg("LOAD").arg(text).query(&mut connection);
            hash.expect("a server that runs scripts")
        };
        Self {
            acquire: load(ACQUIRE),
            release: load(RELEASE),
            release_uncontended: load(RELEASE_UNCONTENDED),
            renew: load(RENEW),
            connection,
        }
    }

    /// Returns the average time of the calls that `each` makes, in microseconds.
    fn cost(&mut self, count: usize, each: impl FnOnce(&mut Self)) -> f64 {
        self.run(&["CONFIG", "RESETSTAT"]);
        each(self);
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query(&mut self.connection)
            .expect("a running server");
        let line = info.lines();
        let mut line = line.filter_map(|line| line.strip_prefix("cmdstat_evalsha:"));
        let fields = line.next().expect("scripts were called").split(',');
        let mut field = fields.filter_map(|field| field.strip_prefix("usec="));
        let micros: u64 = field.next().and_then(|it| it.parse().ok()).expect("a time");
        float(micros) / float(count as u64)
    }

    fn run(&mut self, words: &[&str]) {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command
            .exec(&mut self.connection)
            .expect("a running server");
    }

    fn hold(&mut self, count: usize) {
        let mut sets = Pipeline::new();
        for lock in locks(count) {
            sets.cmd("SET").arg(lock).arg(HOLDER).arg("PX").arg(TTL);
        }
        sets.exec(&mut self.connection).expect("a running server");
    }

    fn acquire(&mut self, owner: &str, mode: impl Fn(usize) -> String) -> Vec<Value> {
        let (known_token, tokens, entry) = ("0", "1", format!("bench 1 {TTL} x"));
        let arguments = |number| {
            let mode = mode(number);
            [owner, TTL, known_token, tokens, &mode, &entry].map(str::to_owned)
        };
        let (connection, script) = (&mut self.connection, &self.acquire);
        call_each(connection, CALLS, script, all_keys, arguments)
    }

    /// Returns the positions in the queue.
    fn wait(&mut self) -> Vec<String> {
        let replies = self.acquire(WAITER, |_| "wait".to_owned());
        let position = |reply: &Value| {
            let words = reply.as_sequence().expect("a reply to a waiter");
            redis::from_redis_value_ref::<u64>(&words[2]).expect("a position")
        };
        replies.iter().map(|it| position(it).to_string()).collect()
    }

    fn release(&mut self) {
        let known_token = "0";
        let arguments = |_| [HOLDER, known_token].map(str::to_owned);
        let (connection, script) = (&mut self.connection, &self.release);
        call_each(connection, CALLS, script, all_keys, arguments);
    }

    fn release_uncontended(&mut self) {
        let arguments = |_| [HOLDER.to_owned()];
        let (connection, script) = (&mut self.connection, &self.release_uncontended);
        call_each(connection, CALLS, script, lock_and_queue, arguments);
    }

    fn renew(&mut self, count: usize) {
        let arguments = |_| [HOLDER, RENEWED].map(str::to_owned);
        let keys = |lock: &str| vec![lock.to_owned()];
        call_each(&mut self.connection, count, &self.renew, keys, arguments);
    }
}

/// Calls a script once for each lock, in one message. Returns the replies.
fn call_each<const N: usize>(
    connection: &mut Connection,
    count: usize,
    script: &str,
    keys: fn(&str) -> Vec<String>,
    arguments: impl Fn(usize) -> [String; N],
) -> Vec<Value> {
    let mut calls = Pipeline::new();
    for (number, lock) in locks(count).enumerate() {
        let keys = keys(&lock);
        let call = calls.cmd("EVALSHA").arg(script).arg(keys.len());
        call.arg(keys).arg(&arguments(number)[..]);
    }
    calls.query(connection).expect("replies")
}

fn connect(server: &RedisServer) -> Connection {
    let client = redis::Client::open(server.url()).expect("a url");
    client.get_connection().expect("a running server")
}

type Case = (&'static str, fn(&mut Bench) -> f64);

const CASES: [Case; 8] = [
    ("an acquire by script of a free lock", |bench| {
        bench.cost(CALLS, |bench| {
            drop(bench.acquire(HOLDER, |_| "try".to_owned()));
        })
    }),
    ("a first wait", |bench| {
        bench.hold(CALLS);
        bench.cost(CALLS, |bench| drop(bench.wait()))
    }),
    ("a check of a waiter", |bench| {
        bench.hold(CALLS);
        let positions = bench.wait();
        bench.cost(CALLS, |bench| {
            drop(bench.acquire(WAITER, |number| positions[number].clone()));
        })
    }),
    ("an uncontended release", |bench| {
        bench.hold(CALLS);
        bench.cost(CALLS, Bench::release_uncontended)
    }),
    ("a general release without a waiter", |bench| {
        bench.hold(CALLS);
        bench.cost(CALLS, Bench::release)
    }),
    ("a general release with a waiter", |bench| {
        bench.hold(CALLS);
        drop(bench.wait());
        bench.cost(CALLS, Bench::release)
    }),
    ("a single renewal (to the microsecond)", |bench| {
        bench.hold(1);
        bench.cost(1, |bench| bench.renew(1))
    }),
    ("each renewal of a full batch", |bench| {
        bench.hold(BATCH);
        bench.cost(BATCH, |bench| bench.renew(BATCH))
    }),
];

pub(crate) fn run() {
    let server = start_server();
    let mut listener = connect(&server);
    let mut listener = listener.as_pubsub();
    // Without a subscriber, the scripts would not grant the lock.
    listener.subscribe(GRANTS).expect("a running server");
    let mut bench = Bench::new(&server);
    let mut samples: [Vec<f64>; CASES.len()] = Default::default();
    for _ in 0..ROUNDS {
        for ((_, case), samples) in CASES.iter().zip(&mut samples) {
            bench.run(&["FLUSHALL"]);
            samples.push(case(&mut bench));
        }
    }
    report::title("microseconds of the server per call of a script: minimum, and median");
    for ((name, _), samples) in CASES.iter().zip(samples) {
        let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
        println!("  {name:<37} {least:>8.2} {:>8.2}", median(samples));
    }
}
