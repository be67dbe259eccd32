//! Locks for many readers or one writer.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use distributed_lock_core::{
    error::LockError as PeerError,
    traits::{DistributedReaderWriterLock as _, LockHandle as _, ReaderWriterLockProvider as _},
};
use distributed_lock_redis::{RedisDistributedReaderWriterLock, RedisLockProvider};
use lock_core::{LockError, LockManager, LockOptions};
use rlock::{AcquireError, AcquireOptions, async_lock};
use tokio::time::sleep;

const KEY: &str = "hot";

/// The ttl of every lock; also the default of rlock.
const TTL: Duration = Duration::from_secs(10);

pub(crate) trait RwLock: Send + Sync + Sized + 'static {
    fn connect(url: &str) -> impl Future<Output = Self>;

    /// Reads for this time. Returns whether the lock was granted.
    fn read(&self, body: Duration) -> impl Future<Output = bool> + Send;

    /// Acquires the lock as the writer, and releases it at once. Returns how long it waited, unless it gave up at the bound.
    fn write(&self, bound: Duration) -> impl Future<Output = Option<Duration>>;
}

pub(crate) struct LockCore(LockManager);

impl RwLock for LockCore {
    async fn connect(url: &str) -> Self {
        Self(LockManager::connect(url).await.expect("a running server"))
    }

    async fn read(&self, body: Duration) -> bool {
        let options = LockOptions::new(TTL).wait(TTL * 12).shared();
        let guard = self.0.acquire(KEY, options).await;
        let guard = guard.expect("a lock within the wait");
        sleep(body).await;
        guard.release().await.expect("a lock that was not lost");
        true
    }

    async fn write(&self, bound: Duration) -> Option<Duration> {
        let asked = Instant::now();
        let options = LockOptions::new(TTL).wait(bound);
        let guard = match self.0.acquire(KEY, options).await {
            Ok(guard) => guard,
            Err(LockError::Busy { .. }) => return None,
            Err(error) => panic!("lock-core: {error}"),
        };
        let waited = asked.elapsed();
        guard.release().await.expect("a lock that was not lost");
        Some(waited)
    }
}

/// `rlock` with its defaults: a waiter retries every 100 ms.
pub(crate) struct RLock(async_lock::RLock);

impl RwLock for RLock {
    async fn connect(url: &str) -> Self {
        let lock = async_lock::RLock::new(url).await;
        Self(lock.expect("a running server"))
    }

    async fn read(&self, body: Duration) -> bool {
        let guard = self.0.acquire_read(KEY).await;
        let mut guard = guard.expect("a lock at some point");
        sleep(body).await;
        guard.release().await.expect("a running server");
        true
    }

    async fn write(&self, bound: Duration) -> Option<Duration> {
        let asked = Instant::now();
        let options = AcquireOptions::builder().lock_timeout(Some(bound)).build();
        let options = options.expect("a time-out");
        let mut guard = match self.0.acquire_write_with_options(KEY, options).await {
            Ok(guard) => guard,
            Err(AcquireError::LockTimeout) => return None,
            Err(error) => panic!("rlock: {error}"),
        };
        let waited = asked.elapsed();
        guard.release().await.expect("a running server");
        Some(waited)
    }
}

/// `distributed-lock-redis` with its defaults. A writer retries after 50 ms, and then after twice as long. A reader is refused
/// at once, and retries here after the time of a body: 64 readers that retried at once would leave the writer no processor time.
pub(crate) struct DistributedLockRedis(RedisDistributedReaderWriterLock);

impl RwLock for DistributedLockRedis {
    async fn connect(url: &str) -> Self {
        let provider = RedisLockProvider::new(url).await;
        let provider = provider.expect("a running server");
        Self(provider.create_reader_writer_lock(KEY))
    }

    async fn read(&self, body: Duration) -> bool {
        let handle = self.0.try_acquire_read().await;
        let handle = handle.expect("a running server");
        sleep(body).await;
        let Some(handle) = handle else {
            return false;
        };
        handle.release().await.expect("a running server");
        true
    }

    async fn write(&self, bound: Duration) -> Option<Duration> {
        let asked = Instant::now();
        let handle = match self.0.acquire_write(Some(bound)).await {
            Ok(handle) => handle,
            Err(PeerError::Timeout(_) | PeerError::Cancelled) => return None,
            Err(error) => panic!("distributed-lock-redis: {error}"),
        };
        let waited = asked.elapsed();
        handle.release().await.expect("a running server");
        Some(waited)
    }
}
