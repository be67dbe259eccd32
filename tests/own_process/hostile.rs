//! Servers with arbitrary replies: they must cause no panic, no hang and no growth.
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
use lock_tests::{FakeServer, Reply};
use tokio::{task::JoinSet, time::timeout};

/// Far longer than every time-out: only a hang takes this long.
const HANG: Duration = Duration::from_secs(30);

/// The number of servers of each kind, each with replies of its own.
const SEEDS: u64 = 48;

/// The number of them that are used at the same time.
const AT_A_TIME: usize = 8;

/// Much more than all managers together need, and much less than the lengths that the servers announce.
const MOST_GROWTH_KB: u64 = 128 * 1024;

/// Pseudo-random numbers, by Steele and Vigna's `SplitMix64`.
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.roll() % end as u64).expect("small")
    }

    fn one_of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    /// A value of any type, or something that only begins like one.
    fn value(&mut self, depth: usize) -> String {
        let kinds = if depth == 0 { 9 } else { 13 };
        match self.below(kinds) {
            0 => self
                .one_of(&["_\r\n", "$-1\r\n", "*-1\r\n", "#t\r\n", ",1.5\r\n"])
                .to_owned(),
            1 => format!(":{}\r\n", self.one_of(&["0", "1", "-1", "-2", "2"])),
            2 => {
                let large = [
                    "9223372036854775807",
                    "-9223372036854775808",
                    "9007199254740992",
                    "1795151176455149",
                ];
                format!(":{}\r\n", self.one_of(&large))
            }
            3 => {
                let text = self.one_of(&[
                    "",
                    "master",
                    "lc1:h/1:0",
                    "mode",
                    "cluster",
                    "127.0.0.1",
                    "0 0 1 c 7 t",
                ]);
                format!("${}\r\n{text}\r\n", text.len())
            }
            4 => format!("+{}\r\n", self.one_of(&["OK", "PONG", "QUEUED", ""])),
            5 => {
                let errors = [
                    "ERR no",
                    "MOVED 1 127.0.0.1:1",
                    "MOVED 99999 :0",
                    "ASK 14041 :1",
                    "NOSCRIPT no",
                    "READONLY no",
                    "TRYAGAIN no",
                    "CLUSTERDOWN no",
                    "NOAUTH no",
                    "NOPERM no",
                    "LOADING no",
                    "WRONGTYPE no",
                    "ERR unknown command 'x'",
                    "EXECABORT no",
                    "OOM no",
                    "",
                ];
                format!("-{}\r\n", self.one_of(&errors))
            }
            6 => self
                .one_of(&[
                    "$1048577\r\n",
                    "*99999999\r\n",
                    "%4294967296\r\n",
                    "$99999999999999999999\r\n",
                    "*1\r\n",
                ])
                .to_owned(),
            7 => {
                let kind = self.one_of(&[
                    "message",
                    "smessage",
                    "subscribe",
                    "ssubscribe",
                    "sunsubscribe",
                    "invalidate",
                ]);
                let channel = "__lock_core__:grants:x";
                format!(
                    ">3\r\n${}\r\n{kind}\r\n${}\r\n{channel}\r\n$3\r\n1 9\r\n",
                    kind.len(),
                    channel.len()
                )
            }
            8 => String::new(),
            _ => {
                let length = self.below(5);
                let kind = self.one_of(&["*", "~", "%", ">"]);
                let each = if kind == "%" { 2 } else { 1 };
                let mut text = format!("{kind}{length}\r\n");
                for _ in 0..length * each {
                    text.push_str(&self.value(depth - 1));
                }
                text
            }
        }
    }

    /// The reply of a real server to a script, with random numbers.
    fn numbers(&mut self) -> String {
        let first = ["0", "1", "-1"];
        let more = [
            "0",
            "1",
            "-1",
            "-2",
            "-3",
            "40",
            "9223372036854775807",
            "-9223372036854775808",
            "9007199254740992",
            "1795151176455149",
        ];
        let length = 1 + self.below(4);
        let mut text = format!("*{length}\r\n:{}\r\n", self.one_of(&first));
        text.extend((1..length).map(|_| format!(":{}\r\n", self.one_of(&more))));
        text
    }

    fn reply(&mut self) -> Reply {
        match self.below(32) {
            5..16 => Reply::Bytes(self.numbers().into_bytes()),
            0 => Reply::HangUp,
            1 => Reply::Silence,
            2 => Reply::Bytes(
                (0..self.below(40))
                    .map(|_| self.roll().to_le_bytes()[0])
                    .collect(),
            ),
            3 => Reply::Bytes((self.value(2) + &self.value(2)).into_bytes()),
            4 => Reply::Last(self.value(2).into_bytes()),
            _ => Reply::Bytes(self.value(3).into_bytes()),
        }
    }
}

/// A server that answers correctly until a client accepts it, and mostly wrongly from then on. `port` is its own port, as soon
/// as that is known.
fn hostile(seed: u64) -> FakeServer {
    let dice = Arc::new(Mutex::new(Dice(seed)));
    let port = Arc::new(OnceLock::new());
    let own = Arc::clone(&port);
    let server = FakeServer::start(move |words| {
        let mut dice = dice.lock().expect("no panic");
        let port = own.get().copied().unwrap_or(1);
        let first = words.first().map_or("", String::as_str);
        if dice.below(8) == 0 {
            return dice.reply();
        }
        let hello = "%2\r\n+proto\r\n:3\r\n+mode\r\n+standalone\r\n";
        match first {
            "HELLO" => Reply::Bytes(hello.into()),
            "AUTH" | "CLIENT" | "SELECT" => Reply::line("+OK"),
            "PING" => Reply::pong(words),
            "SUBSCRIBE" => Reply::Bytes(">3\r\n+subscribe\r\n+c\r\n:1\r\n".into()),
            "EVAL" | "EVALSHA" if words.get(3).is_some_and(|key| key == "__lock_core__:check") => {
                Reply::line(":1")
            }
            "EVAL" | "EVALSHA"
                if words
                    .get(3)
                    .is_some_and(|key| key == "__lock_core__:watched") =>
            {
                let marker = format!("{}:{}:0", words[5], words[6]);
                Reply::Bytes(format!("${}\r\n{marker}\r\n", marker.len()).into())
            }
            "ROLE" => Reply::Bytes("*1\r\n$6\r\nmaster\r\n".into()),
            "CLUSTER" => {
                let owner = format!("*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
                Reply::Bytes(format!("*1\r\n*3\r\n:0\r\n:16383\r\n{owner}").into())
            }
            "SENTINEL" => {
                let port = port.to_string();
                let fields = [
                    "ip",
                    "127.0.0.1",
                    "port",
                    port.as_str(),
                    "config-epoch",
                    "1",
                ];
                let bulk = fields.map(|field| format!("${}\r\n{field}\r\n", field.len()));
                Reply::Bytes(format!("%3\r\n{}", bulk.concat()).into())
            }
            "INFO" => {
                let text = format!("run_id:{port}\r\nuptime_in_seconds:1000\r\n");
                Reply::Bytes(format!("${}\r\n{text}\r\n", text.len()).into())
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
async fn no_reply_of_a_server_causes_a_panic_a_hang_or_growth() {
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
                    ended.unwrap_or_else(|_| panic!("seed {seed}, kind {kind}: it hangs"));
                used.fetch_add(usize::from(was_used), Ordering::Relaxed);
            });
        }
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("no panic, and no hang");
    }
    for (kind, used) in USED.iter().enumerate() {
        let used = used.load(Ordering::Relaxed);
        assert!(used > 10, "kind {kind}: {used} were taken for servers");
    }
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "also on other threads");
    let growth = memory_kb().saturating_sub(before);
    assert!(growth < MOST_GROWTH_KB, "{growth} kB");
}
