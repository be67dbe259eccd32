//! The contenders of the benches: lock-core, the other crates, and locks inside a process.

use std::{sync::Arc, time::Duration};

use distributed_lock_core::{
    error::LockError as PeerError,
    traits::{DistributedLock, LockHandle, LockProvider},
};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};
use lock_core::{LockGuard, LockManager, LockOptions};
use tokio::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

/// The ttl of everything that is measured.
const TTL: Duration = Duration::from_secs(10);

/// Longer than any bench, so that no task gives up in one.
pub(crate) const WAIT: Duration = Duration::from_secs(120);

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
