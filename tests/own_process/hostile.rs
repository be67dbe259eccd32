//! Servers with arbitrary replies, which must cause no panic, no hang and no growth.
//!
//! The test needs a separate process: the panic hook counts panics, and the memory is measured.

use std::{
    fs,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lock_core::{LockManager, LockOptions};
use lock_tests::{FakeServer, HANG, Random, Reply, scripts::PROBED};
use tokio::{task::JoinSet, time::timeout};

/// The number of deployments of each kind, each with replies of its own.
const SEEDS: u64 = 48;

/// The number of deployments that are used at the same time.
const AT_A_TIME: usize = 8;

/// Much more than all managers together need, and much less than the lengths that the servers announce.
const MOST_GROWTH_KB: u64 = 128 * 1024;

const CONSTANTS: &str = "_ $-1 *-1 #t ,1.5";

const STATUSES: &str = "+OK +PONG +QUEUED +";

/// Texts that only begin like a value.
const BROKEN: &str = "$1048577 *99999999 %4294967296 $99999999999999999999 *1";

const SMALL: &str = "0 1 -1 -2 2";

const LARGE: &str = "9223372036854775807 -9223372036854775808 9007199254740992 1795151176455149";

const TEXTS: &str = "|master|lc1:h/1:0|mode|cluster|127.0.0.1|0 0 1 c 7 t";

const ERRORS: &str = "|ERR no|MOVED 1 127.0.0.1:1|MOVED 99999 :0|ASK 14041 :1|NOSCRIPT no|READONLY no|TRYAGAIN no|CLUSTERDOWN no|\
                      NOAUTH no|NOPERM no|LOADING no|WRONGTYPE no|ERR unknown command 'x'|EXECABORT no|OOM no";

const MESSAGES: &str = "message smessage subscribe ssubscribe sunsubscribe invalidate";

/// The source of replies.
struct Dice(Random);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.0.below(end as u64)).expect("small")
    }

    fn one_of<'a>(&mut self, all: &'a str, separator: char) -> &'a str {
        let all: Vec<_> = all.split(separator).collect();
        all[self.below(all.len())]
    }

    /// Returns a value of any type, or a text that only begins like one.
    fn value(&mut self, depth: usize) -> String {
        let kinds = if depth == 0 { 9 } else { 13 };
        match self.below(kinds) {
            0 => format!("{}\r\n", self.one_of(CONSTANTS, ' ')),
            1 => format!("{}\r\n", self.one_of(STATUSES, ' ')),
            2 => format!("{}\r\n", self.one_of(BROKEN, ' ')),
            3 => format!(":{}\r\n", self.one_of(SMALL, ' ')),
            4 => format!(":{}\r\n", self.one_of(LARGE, ' ')),
            5 => bulk(self.one_of(TEXTS, '|')),
            6 => format!("-{}\r\n", self.one_of(ERRORS, '|')),
            7 => {
                let kind = bulk(self.one_of(MESSAGES, ' '));
                let channel = bulk("__lock_core__:grants:x");
                format!(">3\r\n{kind}{channel}{}", bulk("1 9"))
            }
            8 => String::new(),
            _ => {
                let length = self.below(5);
                let kind = self.one_of("* ~ % >", ' ');
                let each = if kind == "%" { 2 } else { 1 };
                let mut text = format!("{kind}{length}\r\n");
                for _ in 0..length * each {
                    text.push_str(&self.value(depth - 1));
                }
                text
            }
        }
    }

    /// Returns a list of numbers, as a script replies.
    fn numbers(&mut self) -> String {
        let length = 1 + self.below(4);
        let first = self.one_of("0 1 -1", ' ');
        let mut text = format!("*{length}\r\n:{first}\r\n");
        for _ in 1..length {
            let numbers = [SMALL, "-3 40", LARGE][self.below(3)];
            text.extend([":", self.one_of(numbers, ' '), "\r\n"]);
        }
        text
    }

    fn reply(&mut self) -> Reply {
        match self.below(32) {
            5..16 => Reply::Bytes(self.numbers().into_bytes()),
            0 => Reply::HangUp,
            1 => Reply::Silence,
            2 => Reply::Bytes(
                (0..self.below(40))
                    .map(|_| self.0.next().to_le_bytes()[0])
                    .collect(),
            ),
            3 => Reply::Bytes((self.value(2) + &self.value(2)).into_bytes()),
            4 => Reply::Last(self.value(2).into_bytes()),
            _ => Reply::Bytes(self.value(3).into_bytes()),
        }
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// Starts a server that answers correctly until a client accepts it, and mostly wrongly from then on.
fn hostile(seed: u64) -> FakeServer {
    let dice = Arc::new(Mutex::new(Dice(Random::new(seed))));
    let port = Arc::new(OnceLock::new());
    let own = Arc::clone(&port);
    let server = FakeServer::start(move |words| {
        let mut dice = dice.lock().expect("no panic");
        let port = own.get().copied().unwrap_or(1);
        let first = words.first().map_or("", String::as_str);
        if dice.below(24) == 0 {
            return dice.reply();
        }
        let hello = "%2\r\n+proto\r\n:3\r\n+mode\r\n+standalone\r\n";
        match first {
            "HELLO" => Reply::Bytes(hello.into()),
            "AUTH" | "CLIENT" | "SELECT" => Reply::line("+OK"),
            "PING" => Reply::pong(words),
            "SUBSCRIBE" => Reply::Bytes(">3\r\n+subscribe\r\n+c\r\n:1\r\n".into()),
            "EVAL" | "EVALSHA" if words.get(3).is_some_and(|key| key == PROBED) => {
                Reply::line(":1")
            }
            "EVAL" | "EVALSHA"
                if words
                    .get(3)
                    .is_some_and(|key| key == "__lock_core__:watched") =>
            {
                Reply::Bytes(bulk(&format!("{}:{}:0", words[5], words[6])).into())
            }
            "ROLE" => Reply::Bytes(format!("*1\r\n{}", bulk("master")).into()),
            "CLUSTER" => {
                let owner = format!("*2\r\n{}:{port}\r\n", bulk("127.0.0.1"));
                Reply::Bytes(format!("*1\r\n*3\r\n:0\r\n:16383\r\n{owner}").into())
            }
            "SENTINEL" => {
                let fields = format!("ip 127.0.0.1 port {port} config-epoch 1");
                let fields: String = fields.split(' ').map(bulk).collect();
                Reply::Bytes(format!("%3\r\n{fields}").into())
            }
            "INFO" => {
                let text = format!("run_id:{port}\r\nuptime_in_seconds:1000\r\n");
                Reply::Bytes(bulk(&text).into())
            }
            _ => dice.reply(),
        }
    });
    port.set(server.port()).expect("only here");
    server
}

/// Calls every operation, and ignores the results.
///
/// Returns whether the manager accepted the server at all.
async fn use_it(url: String) -> bool {
    let locks = LockManager::builder()
        .connect_timeout(Duration::from_millis(200))
        .command_timeout(Duration::from_millis(50))
        .polling_pause(Duration::from_millis(5))
        .quarantine(Duration::ZERO);
    let Ok(locks) = locks.connect(&url).await else {
        return false;
    };
    let options = LockOptions::new(Duration::from_millis(300)).wait(Duration::from_millis(150));
    for round in 0..3 {
        let key = format!("k{round}");
        if let Ok(guard) = locks.acquire(key.as_str(), options.clone()).await {
            guard.lease().verify().await.ok();
            guard.release().await.ok();
        }
        let both = [key.as_str(), "other"];
        locks
            .run_all(both, options.clone(), async |_| {})
            .await
            .ok();
        locks.inspect(key.as_str()).await.ok();
    }
    locks.force_release("k0").await.ok();
    locks.check().await.ok();
    locks.shutdown(Duration::ZERO).await;
    true
}

fn memory_kb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kb = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    kb.expect("a size in kB")
}

#[tokio::test]
async fn no_reply_from_a_server_causes_a_panic_a_hang_or_growth() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    static USED: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        report(panic);
    }));
    let before = memory_kb();
    let mut running = JoinSet::new();
    for seed in 0..SEEDS {
        for (kind, used) in USED.iter().enumerate() {
            if running.len() >= AT_A_TIME {
                running.join_next().await.expect("some").expect("no panic");
            }
            running.spawn(async move {
                let servers: Vec<_> = (0..3).map(|number| hostile(seed * 31 + number)).collect();
                let hosts: Vec<_> = servers
                    .iter()
                    .map(|server| format!("127.0.0.1:{}", server.port()))
                    .collect();
                let url = match kind {
                    0 => servers[0].url(),
                    1 => format!("redis://{}", hosts.join(",redis://")),
                    2 => format!("redis+cluster://{}", hosts.join(",")),
                    _ => format!("redis+sentinel://{}/locks", hosts.join(",")),
                };
                let ended = timeout(HANG, use_it(url)).await;
                let was_used =
                    ended.unwrap_or_else(|_| panic!("a hang with seed {seed}, kind {kind}"));
                used.fetch_add(usize::from(was_used), Ordering::Relaxed);
            });
        }
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("no panic, and no hang");
    }
    for (kind, used) in USED.iter().enumerate() {
        let used = used.load(Ordering::Relaxed);
        assert!(
            used > 10,
            "only {used} deployments of kind {kind} were accepted"
        );
    }
    assert_eq!(
        PANICS.load(Ordering::Relaxed),
        0,
        "a panic, perhaps on another thread"
    );
    let growth = memory_kb().saturating_sub(before);
    assert!(growth < MOST_GROWTH_KB, "{growth} kB");
}
