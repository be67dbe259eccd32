//! The contenders of the benches: lock-core, the floors under it, and the other crates.

use std::{
    future::poll_fn,
    sync::{Arc, mpsc},
    task::Poll,
    time::Duration,
};

use distributed_lock_core::{
    error::LockError as PeerError,
    traits::{DistributedLock, LockHandle, LockProvider},
};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};
use lock_core::{LockGuard, LockManager, LockOptions};
use redis::{AsyncConnectionConfig, IntoConnectionInfo, Script, aio::MultiplexedConnection};
use tokio::{
    runtime::{self, Handle},
    sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, oneshot},
    task::coop,
};

/// The ttl of everything that is measured.
const TTL: Duration = Duration::from_secs(10);

/// Longer than any bench, so that no task gives up in one.
const WAIT: Duration = Duration::from_secs(120);

/// A lock, or a floor, that is taken and released.
pub(crate) trait Locker: Clone + Send + Sync + 'static {
    type Held<'a>: Send;

    fn acquire<'a>(&'a self, key: &'a str) -> impl Future<Output = Self::Held<'a>> + Send;

    fn release<'a>(&'a self, key: &'a str, held: Self::Held<'a>)
    -> impl Future<Output = ()> + Send;
}

#[derive(Clone)]
pub(crate) struct LockCore(LockManager);

impl LockCore {
    pub(crate) async fn connect(url: &str) -> Self {
        Self(LockManager::connect(url).await.expect("a running server"))
    }

    fn options() -> LockOptions {
        LockOptions::new(TTL).wait(WAIT)
    }
}

impl Locker for LockCore {
    type Held<'a> = LockGuard;

    async fn acquire(&self, key: &str) -> LockGuard {
        let guard = self.0.acquire(key, Self::options()).await;
        guard.expect("a lock within the wait")
    }

    async fn release(&self, _key: &str, guard: LockGuard) {
        guard.release().await.expect("a lock that was not lost");
    }
}

/// The same manager in shared mode.
#[derive(Clone)]
pub(crate) struct Shared(LockManager);

/// The same manager with four permits.
#[derive(Clone)]
pub(crate) struct Permits(LockManager);

macro_rules! in_mode {
    ($locker:ident: $($mode:tt)*) => {
        impl $locker {
            pub(crate) async fn connect(url: &str) -> Self {
                let LockCore(manager) = LockCore::connect(url).await;
                Self(manager)
            }
        }

        impl Locker for $locker {
            type Held<'a> = LockGuard;

            async fn acquire(&self, key: &str) -> LockGuard {
                let options = LockCore::options().$($mode)*;
                let guard = self.0.acquire(key, options).await;
                guard.expect("a lock within the wait")
            }

            async fn release(&self, _key: &str, guard: LockGuard) {
                guard.release().await.expect("a lock that was not lost");
            }
        }
    };
}

in_mode! { Shared: shared() }
in_mode! { Permits: permits(4) }

/// Readers of one read/write lock inside the process.
#[derive(Clone, Default)]
pub(crate) struct TokioRwLock(Arc<RwLock<()>>);

impl Locker for TokioRwLock {
    type Held<'a> = RwLockReadGuard<'a, ()>;

    async fn acquire<'a>(&'a self, _key: &'a str) -> RwLockReadGuard<'a, ()> {
        self.0.read().await
    }

    async fn release<'a>(&'a self, _key: &'a str, held: RwLockReadGuard<'a, ()>) {
        drop(held);
    }
}

/// A whole `run`, which returns when the release is sent.
#[derive(Clone)]
pub(crate) struct InBackground(LockManager);

impl InBackground {
    pub(crate) async fn connect(url: &str) -> Self {
        let LockCore(manager) = LockCore::connect(url).await;
        Self(manager)
    }
}

impl Locker for InBackground {
    type Held<'a> = ();

    async fn acquire(&self, key: &str) {
        let options = LockCore::options().release_in_background();
        let ran = self.0.run(key, options, async |_| ()).await;
        ran.expect("a lock within the wait");
    }

    async fn release(&self, _key: &str, (): ()) {}
}

/// The least cost of a lock: `SET NX PX`, and a script that compares and deletes.
#[derive(Clone)]
pub(crate) struct Floor {
    connection: MultiplexedConnection,
    script: Arc<Script>,
}

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

impl Floor {
    pub(crate) async fn connect(url: &str) -> Self {
        Self::on(plain_connection(url).await).await
    }

    async fn on(mut connection: MultiplexedConnection) -> Self {
        let script = Script::new(COMPARE_AND_DELETE);
        let loaded = script.prepare_invoke().load_async(&mut connection).await;
        let _hash: String = loaded.expect("a running server");
        Self {
            connection,
            script: Arc::new(script),
        }
    }
}

impl Locker for Floor {
    type Held<'a> = ();

    async fn acquire(&self, key: &str) {
        let set: Option<()> = redis::cmd("SET")
            .arg(key)
            .arg(key)
            .arg("NX")
            .arg("PX")
            .arg(10_000)
            .query_async(&mut self.connection.clone())
            .await
            .expect("a running server");
        set.expect("a key of its own");
    }

    async fn release(&self, key: &str, (): ()) {
        let mut connection = self.connection.clone();
        let mut script = self.script.key(key);
        let deleted = script.arg(key).invoke_async(&mut connection).await;
        let deleted: u32 = deleted.expect("a running server");
        assert_eq!(deleted, 1, "a key of its own");
    }
}

/// The same commands, without a wait for the release.
#[derive(Clone)]
pub(crate) struct UnawaitedFloor(Floor);

impl UnawaitedFloor {
    pub(crate) async fn connect(url: &str) -> Self {
        // The queue has room for all requests: requests that wait for room may overtake each other.
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1 << 12);
        Self(Floor::on(connection_with(url, &config).await).await)
    }
}

impl Locker for UnawaitedFloor {
    type Held<'a> = ();

    // Each acquire has a new key: at the end of a round, releases are still in flight.
    async fn acquire(&self, key: &str) {
        self.0.acquire(&format!("unawaited:{key}")).await;
    }

    async fn release(&self, key: &str, (): ()) {
        let (floor, key) = (self.0.clone(), format!("unawaited:{key}"));
        let release = async move { floor.release(&key, ()).await };
        let mut release = Box::pin(coop::unconstrained(release));
        // The release is sent here, before the next request of this task.
        let sent = poll_fn(|context| Poll::Ready(release.as_mut().poll(context)));
        if sent.await.is_pending() {
            drop(tokio::spawn(release));
        }
    }
}

/// Two PINGs on a plain connection that the user's runtime drives.
#[derive(Clone)]
pub(crate) struct Pings(MultiplexedConnection);

impl Pings {
    pub(crate) async fn connect(url: &str) -> Self {
        Self(plain_connection(url).await)
    }
}

impl Locker for Pings {
    type Held<'a> = ();

    async fn acquire(&self, _key: &str) {
        ping(self.0.clone()).await;
    }

    async fn release(&self, _key: &str, (): ()) {
        ping(self.0.clone()).await;
    }
}

/// A single PING.
#[derive(Clone)]
pub(crate) struct Ping(MultiplexedConnection);

impl Ping {
    pub(crate) async fn connect(url: &str) -> Self {
        Self(plain_connection(url).await)
    }
}

impl Locker for Ping {
    type Held<'a> = ();

    async fn acquire(&self, _key: &str) {
        ping(self.0.clone()).await;
    }

    async fn release(&self, _key: &str, (): ()) {}
}

/// Two PINGs on a connection with a thread of its own, as a manager has.
#[derive(Clone)]
pub(crate) struct DrivenPings {
    connection: MultiplexedConnection,
    thread: Handle,
    /// The thread ends when the last of these is dropped.
    _alive: Arc<oneshot::Sender<()>>,
}

impl DrivenPings {
    pub(crate) async fn connect(url: &str) -> Self {
        let (alive, ended) = oneshot::channel();
        let (started, start) = mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let mut builder = runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().build().expect("one more runtime");
            started.send(runtime.handle().clone()).expect("a listener");
            runtime.block_on(ended).ok();
        });
        let thread = start.recv().expect("a thread that starts");
        let url = url.to_owned();
        let connection = thread.spawn(async move { plain_connection(&url).await });
        Self {
            connection: connection.await.expect("a connection"),
            thread,
            _alive: Arc::new(alive),
        }
    }

    async fn ping(&self) {
        let connection = self.connection.clone();
        let (sender, answer) = oneshot::channel();
        drop(self.thread.spawn(async move {
            ping(connection).await;
            sender.send(()).ok();
        }));
        answer.await.expect("an answer");
    }
}

impl Locker for DrivenPings {
    type Held<'a> = ();

    async fn acquire(&self, _key: &str) {
        self.ping().await;
    }

    async fn release(&self, _key: &str, (): ()) {
        self.ping().await;
    }
}

async fn plain_connection(url: &str) -> MultiplexedConnection {
    // No time-out: a busy machine is no reason to give up.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    connection_with(url, &config).await
}

async fn connection_with(url: &str, config: &AsyncConnectionConfig) -> MultiplexedConnection {
    let info = url.into_connection_info().expect("a url");
    let prompt = info.tcp_settings().clone().set_nodelay(true);
    let client = redis::Client::open(info.set_tcp_settings(prompt)).expect("a url");
    let connection = client
        .get_multiplexed_async_connection_with_config(config)
        .await;
    connection.expect("a running server")
}

async fn ping(mut connection: MultiplexedConnection) {
    let pong: Result<(), _> = redis::cmd("PING").query_async(&mut connection).await;
    pong.expect("a running server");
}

/// `rslock` at its defaults: asks again after up to 200 ms.
#[derive(Clone)]
pub(crate) struct RsLock(rslock::LockManager);

impl RsLock {
    pub(crate) fn new(url: &str) -> Self {
        Self(rslock::LockManager::new(vec![url]))
    }
}

impl Locker for RsLock {
    type Held<'a> = rslock::LockGuard;

    async fn acquire(&self, key: &str) -> rslock::LockGuard {
        let guard = self.0.acquire(key, TTL).await;
        guard.expect("a lock, however long it takes")
    }

    async fn release(&self, _key: &str, guard: rslock::LockGuard) {
        guard.release().await;
    }
}

/// `distributed-lock-redis` at its defaults. With one server its `acquire` does not wait, with any options, so a caller has
/// to ask again. Here it asks again at once, which gives the fastest hand-off.
#[derive(Clone)]
pub(crate) struct DistributedLockRedis(Arc<RedisLockProvider>);

impl DistributedLockRedis {
    pub(crate) async fn connect(url: &str) -> Self {
        let provider = RedisLockProvider::new(url).await;
        Self(Arc::new(provider.expect("a running server")))
    }
}

impl Locker for DistributedLockRedis {
    type Held<'a> = RedisLockHandle;

    async fn acquire(&self, key: &str) -> RedisLockHandle {
        let lock = self.0.create_lock(key);
        loop {
            match lock.acquire(None).await {
                Ok(handle) => return handle,
                Err(PeerError::Timeout(_)) => {}
                Err(error) => panic!("distributed-lock-redis: {error}"),
            }
        }
    }

    async fn release(&self, _key: &str, handle: RedisLockHandle) {
        handle.release().await.expect("a running server");
    }
}

/// A lock inside one process, which no other process can see.
#[derive(Clone, Default)]
pub(crate) struct TokioMutex(Arc<Mutex<()>>);

impl Locker for TokioMutex {
    type Held<'a> = MutexGuard<'a, ()>;

    async fn acquire(&self, _key: &str) -> MutexGuard<'_, ()> {
        self.0.lock().await
    }

    async fn release<'a>(&'a self, _key: &'a str, guard: MutexGuard<'a, ()>) {
        drop(guard);
    }
}
