//! The processor time that the server spends on one call of a script, in the frequent cases.

use lock_tests::{
    RedisServer,
    scripts::{ACQUIRE, RELEASE, RENEW},
};
use redis::{Connection, Pipeline, Value};

use crate::{
    cores::start_server,
    report,
    sample::{float, median},
};

/// The number of calls in one sample, small enough that the scheduler rarely interrupts the server.
const CALLS: usize = 128;
const BATCH: usize = 512;
const ROUNDS: usize = 60;

const HOLDER: &str = "lc1:host-a/1:11111111-2222-3333-4444-555555555555";
const WAITER: &str = "lc1:host-b/2:66666666-2222-3333-4444-555555555555";
const TTL: &str = "60000";
/// Longer, so that a renewal changes something.
const RENEWED: &str = "120000";
const GRANTS: &str = "__lock_core__:grants:bench";

/// The hash of a script that the server has loaded.
struct Script(String);

struct Bench {
    connection: Connection,
    acquire: Script,
    release: Script,
    renew: Script,
}

/// Returns the keys of a lock, except for the mark of processes that poll.
fn keys(lock: &str) -> [String; 7] {
    let companion = |name: &str| format!("__lock_core__:{name}:{lock}");
    [
        lock.to_owned(),
        "__lock_core__:clock".to_owned(),
        companion("waiters"),
        companion("beats"),
        companion("holders"),
        companion("seats"),
        companion("result"),
    ]
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
            Script(hash.expect("a server that runs scripts"))
        };
        let (acquire, release, renew) = (load(ACQUIRE), load(RELEASE), load(RENEW));
        Self {
            connection,
            acquire,
            release,
            renew,
        }
    }

    /// Calls a script once for each lock, in one message. Returns the replies.
    fn each(
        &mut self,
        count: usize,
        script: fn(&Self) -> &Script,
        declared: usize,
        arguments: impl Fn(usize) -> Vec<String>,
    ) -> Vec<Value> {
        let mut calls = Pipeline::new();
        for (number, lock) in locks(count).enumerate() {
            let call = calls.cmd("EVALSHA").arg(&script(self).0).arg(declared);
            call.arg(&keys(&lock)[..declared]).arg(arguments(number));
        }
        calls.query(&mut self.connection).expect("replies")
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

    fn acquire(&mut self, token: &str, mode: impl Fn(usize) -> String) -> Vec<Value> {
        let entry = format!("bench 1 {TTL} x");
        let words = |mode: String| [token, TTL, "0", "1", &mode, &entry].map(str::to_owned);
        self.each(
            CALLS,
            |bench| &bench.acquire,
            7,
            |number| words(mode(number)).to_vec(),
        )
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
        let words = || vec![HOLDER.to_owned(), "0".to_owned()];
        self.each(CALLS, |bench| &bench.release, 7, |_| words());
    }

    fn renew(&mut self, count: usize) {
        let words = || vec![HOLDER.to_owned(), RENEWED.to_owned()];
        self.each(count, |bench| &bench.renew, 1, |_| words());
    }
}

fn connect(server: &RedisServer) -> Connection {
    let client = redis::Client::open(server.url()).expect("a url");
    client.get_connection().expect("a running server")
}

type Case = (&'static str, fn(&mut Bench) -> f64);

const CASES: [Case; 7] = [
    ("an acquire of a free lock", |bench| {
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
    ("a release without a waiter", |bench| {
        bench.hold(CALLS);
        bench.cost(CALLS, Bench::release)
    }),
    ("a release with a waiter", |bench| {
        bench.hold(CALLS);
        drop(bench.wait());
        bench.cost(CALLS, Bench::release)
    }),
    ("a renewal", |bench| {
        bench.hold(1);
        bench.cost(1, |bench| bench.renew(1))
    }),
    ("each of 512 renewals", |bench| {
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
        println!("  {name:<30} {least:>8.2} {:>8.2}", median(samples));
    }
}
