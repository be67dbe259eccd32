//! A reader and a writer, or two writers, that ask at the same moment: distributed-lock-redis lets both in.
//!
//! Its read/write lock is taken by several commands, and the first ones only read. A reader sends `EXISTS` and then `SADD`, a
//! writer `SCARD`, `GET` and then `SET`. Here the server holds back every write until both clients have read that the lock is
//! free. A pause between two commands of one client has the same effect.

use distributed_lock_core::traits::{
    DistributedReaderWriterLock as _, LockHandle as _, ReaderWriterLockProvider as _,
};
use distributed_lock_redis::{RedisDistributedReaderWriterLock, RedisLockProvider};
use lock_core::{LockManager, LockOptions};
use lock_tests::{HANG, Proxy, RedisServer, eventually};
use tokio::join;

const KEY: &str = "catalog";
const THEIR_READERS: &str = "distributed-lock:catalog:readers";
const THEIR_WRITER: &str = "distributed-lock:catalog:writer";

/// Two clients, each with a proxy that records its requests.
struct Rig {
    server: RedisServer,
    proxies: [Proxy; 2],
}

impl Rig {
    fn start() -> Self {
        let server = RedisServer::start();
        let proxies = [(); 2].map(|()| Proxy::start(server.port()));
        Self { server, proxies }
    }

    async fn theirs(&self, client: usize) -> RedisDistributedReaderWriterLock {
        let provider = RedisLockProvider::new(self.proxies[client].url()).await;
        let provider = provider.expect("the server is up");
        provider.create_reader_writer_lock(KEY)
    }

    /// Holds back all commands that write.
    fn hold_writes(&self) {
        let millis = (HANG * 10).as_millis().to_string();
        self.server.cli(&["CLIENT", "PAUSE", &millis, "WRITE"]);
        for proxy in &self.proxies {
            proxy.clear_log();
        }
    }

    /// Lets them go on when each client has sent the command that takes the lock: by then it has read the lock's state.
    async fn let_go_when_sent(&self, commands: [&[&str]; 2]) {
        eventually(HANG, "both have looked", async || {
            let sent =
                |proxy: &Proxy, names: &[&str]| names.iter().any(|name| proxy.requests(name) > 0);
            self.proxies
                .iter()
                .zip(commands)
                .all(|(proxy, names)| sent(proxy, names))
        })
        .await;
        self.server.cli(&["CLIENT", "UNPAUSE"]);
    }
}

#[tokio::test]
async fn distributed_lock_redis_lets_a_reader_and_a_writer_in_together() {
    let rig = Rig::start();
    let (one, other) = (rig.theirs(0).await, rig.theirs(1).await);
    rig.hold_writes();
    let (reading, writing, ()) = join!(
        one.try_acquire_read(),
        other.try_acquire_write(),
        rig.let_go_when_sent([&["SADD"], &["SET"]]),
    );
    let reading = reading.expect("a reply").expect("granted");
    let writing = writing.expect("a reply").expect("granted");

    // Each client checks at once whether it still has the lock, and extends the expiry only if it has.
    let prolonged =
        || rig.proxies[0].requests("PTTL") > 1 && rig.proxies[1].requests("PEXPIRE") > 0;
    eventually(HANG, "both have prolonged it", async || prolonged()).await;
    assert!(!*reading.lost_token().borrow(), "the reader has it");
    assert!(!*writing.lost_token().borrow(), "the writer has it");
    assert_eq!(readers(&rig.server), 1);
    assert!(rig.server.get(THEIR_WRITER).is_some());
    // Without a race the lock does exclude.
    assert!(one.try_acquire_read().await.expect("a reply").is_none());
    reading.release().await.expect("a reply");
    writing.release().await.expect("a reply");
}

#[tokio::test]
async fn distributed_lock_redis_lets_two_writers_in_together() {
    let rig = Rig::start();
    let (one, other) = (rig.theirs(0).await, rig.theirs(1).await);
    // A writer that finds a reader leaves a mark. Later writers that find no reader overwrite the mark, whatever its value is.
    let reading = one.try_acquire_read().await.expect("a reply");
    let refused = other.try_acquire_write().await.expect("a reply");
    assert!(refused.is_none(), "there is a reader");
    reading.expect("free").release().await.expect("a reply");

    // New connections: an expiry that the reader still extends would be held back, with all that its connection sends later.
    let (one, other) = (rig.theirs(0).await, rig.theirs(1).await);
    rig.hold_writes();
    let (first, second, ()) = join!(
        one.try_acquire_write(),
        other.try_acquire_write(),
        rig.let_go_when_sent([&["SET"], &["SET"]]),
    );
    let first = first.expect("a reply").expect("granted");
    let second = second.expect("a reply").expect("granted");
    // The value is that of the later writer. The other learns of its loss, but only after both were let in.
    let lost = || [&first, &second].map(|handle| *handle.lost_token().borrow());
    eventually(HANG, "one of them is told", async || lost() != [false; 2]).await;
    assert_ne!(lost(), [true; 2], "the other one has it");
}

/// The same race with lock-core: one request both reads and writes, so one of the two is refused.
#[tokio::test]
async fn ours_lets_one_of_them_in() {
    let rig = Rig::start();
    let connect = async |client: usize| {
        let manager = LockManager::connect(&rig.proxies[client].url()).await;
        manager.expect("the server is up")
    };
    let (one, other) = (connect(0).await, connect(1).await);
    let options = || LockOptions::new(HANG * 10);
    rig.hold_writes();
    let (reading, writing, ()) = join!(
        one.try_acquire(KEY, options().shared()),
        other.try_acquire(KEY, options()),
        rig.let_go_when_sent([&["EVAL", "EVALSHA"], &["MULTI", "EVAL", "EVALSHA"]]),
    );
    let granted = [reading, writing].map(|tried| tried.expect("a reply").is_some());
    assert!(granted[0] != granted[1], "{granted:?}");
}

fn readers(server: &RedisServer) -> i64 {
    let members = server.cli(&["SCARD", THEIR_READERS]);
    redis::from_redis_value(members).expect("a number")
}
