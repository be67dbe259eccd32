//! The contenders of the benches: lock-core, the other crates, and locks inside a process.

use std::{sync::Arc, time::Duration};

use distributed_lock_core::{
    error::LockError as PeerError,
    traits::{DistributedLock, LockHandle, LockProvider},
};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};
use lock_core::{LockGuard, LockManager, LockOptions};
use tokio::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, Semaphore, SemaphorePermit};

/// The ttl of every lock in a benchmark.
const TTL: Duration = Duration::from_secs(10);

/// Longer than any benchmark, so that no task gives up.
pub(crate) const WAIT: Duration = Duration::from_secs(120);

/// A lock to acquire and release, or a baseline that stands in for one.
pub(crate) trait Locker: Clone + Send + Sync + 'static {
    type Held<'a>: Send;

    fn acquire<'a>(&'a self, key: &'a str) -> impl Future<Output = Self::Held<'a>> + Send;

    fn release<'a>(&'a self, key: &'a str, held: Self::Held<'a>)
    -> impl Future<Output = ()> + Send;
}

/// A manager with the options of its acquires.
#[derive(Clone)]
pub(crate) struct LockCore {
    manager: LockManager,
    options: LockOptions,
}

impl LockCore {
    pub(crate) async fn connect(url: &str) -> Self {
        Self::connect_with(url, LockOptions::new(TTL)).await
    }

    pub(crate) async fn connect_to_share(url: &str) -> Self {
        Self::connect_with(url, LockOptions::new(TTL).shared()).await
    }

    pub(crate) async fn connect_to_take_one_of(permits: usize, url: &str) -> Self {
        Self::connect_with(url, LockOptions::new(TTL).permits(permits)).await
    }

    async fn connect_with(url: &str, options: LockOptions) -> Self {
        let manager = LockManager::connect(url).await;
        Self {
            manager: manager.expect("a running server"),
            options: options.wait(WAIT),
        }
    }
}

impl Locker for LockCore {
    type Held<'a> = LockGuard;

    async fn acquire(&self, key: &str) -> LockGuard {
        let guard = self.manager.acquire(key, self.options.clone()).await;
        guard.expect("a lock within the wait")
    }

    async fn release(&self, _key: &str, guard: LockGuard) {
        guard.release().await.expect("a lease that is not lost");
    }
}

/// Readers of a read/write lock inside the process.
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

#[derive(Clone)]
pub(crate) struct TokioSemaphore(Arc<Semaphore>);

impl TokioSemaphore {
    pub(crate) fn new(permits: usize) -> Self {
        Self(Arc::new(Semaphore::new(permits)))
    }
}

impl Locker for TokioSemaphore {
    type Held<'a> = SemaphorePermit<'a>;

    async fn acquire<'a>(&'a self, _key: &'a str) -> SemaphorePermit<'a> {
        self.0.acquire().await.expect("it is never closed")
    }

    async fn release<'a>(&'a self, _key: &'a str, held: SemaphorePermit<'a>) {
        drop(held);
    }
}

/// A complete `run`, which returns as soon as the release is sent.
#[derive(Clone)]
pub(crate) struct InBackground(LockCore);

impl InBackground {
    pub(crate) async fn connect(url: &str) -> Self {
        let options = LockOptions::new(TTL).release_in_background();
        Self(LockCore::connect_with(url, options).await)
    }
}

impl Locker for InBackground {
    type Held<'a> = ();

    async fn acquire(&self, key: &str) {
        let LockCore { manager, options } = &self.0;
        let ran = manager.run(key, options.clone(), async |_| ()).await;
        ran.expect("a lock within the wait");
    }

    async fn release(&self, _key: &str, (): ()) {}
}

/// `rslock` with its defaults: a waiter retries after up to 200 ms.
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
        guard.expect("a lock at some point")
    }

    async fn release(&self, _key: &str, guard: rslock::LockGuard) {
        guard.release().await;
    }
}

/// `distributed-lock-redis` with its defaults. With one server its `acquire` never waits, whatever the options, so the caller
/// has to retry. Retrying at once gives the fastest hand-off.
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

/// A lock inside one process, invisible to any other.
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
