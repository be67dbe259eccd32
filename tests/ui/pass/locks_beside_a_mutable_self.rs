//! Locks beside a mutable self.

use lock_core::{LockError, distributed_lock};

use lock_core::{LockManager, LockSource};
use std::sync::{Arc, Mutex};

struct Inner {
    locks: LockManager,
}
impl LockSource for Inner {
    fn lock_manager(&self) -> LockManager {
        self.locks.clone()
    }
}

struct Service {
    inner: Arc<Inner>,
    guarded: Mutex<Arc<Inner>>,
    n: u64,
}

impl Service {
    fn manager(&self) -> &LockManager {
        &self.inner.locks
    }

    #[distributed_lock(key = "n:{self.n}", locks = self.inner.locks)]
    async fn field(&mut self) -> Result<&mut u64, LockError> {
        self.n += 1;
        Ok(&mut self.n)
    }
    #[distributed_lock(key = "n", locks = self.inner)]
    async fn source(&mut self) -> Result<(), LockError> {
        self.n += 1;
        Ok(())
    }
    #[distributed_lock(key = "n", locks = self.manager())]
    async fn call(&mut self) -> Result<(), LockError> {
        self.n += 1;
        Ok(())
    }
    #[distributed_lock(key = "n", locks = *self.guarded.lock().map_err(|_| LockError::NotConfigured)?)]
    async fn guarded(&mut self) -> Result<(), LockError> {
        self.n += 1;
        Ok(())
    }
}
