//! `self` in every form, also beside `locks` of its own.

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
};

use lock_core::{LockError, LockManager, LockSource, distributed_lock};

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
    id: u64,
    name: String,
}

impl Service {
    #[distributed_lock(key = "s:{self.id}")]
    async fn by_mutable_value(mut self) -> Result<Self, LockError> {
        self.id += 1;
        Ok(self)
    }
    #[distributed_lock(key = "s:{self.id}", locks = self.inner.locks)]
    async fn by_mutable_reference(&mut self, more: u64) -> Result<&mut String, LockError> {
        self.id += more;
        Ok(&mut self.name)
    }
    #[distributed_lock(key = "n", locks = *self.guarded.lock().map_err(|_| LockError::NotConfigured)?)]
    async fn by_mutable_reference_beside_a_guard(&mut self) -> Result<(), LockError> {
        self.id += 1;
        Ok(())
    }
    #[distributed_lock(key = "s:{self.id}", locks = &self.inner)]
    async fn by_arc(self: Arc<Self>) -> Result<u64, LockError> {
        Ok(self.id)
    }
    #[distributed_lock(key = "s:{self.id}")]
    async fn by_box(self: Box<Self>) -> Result<String, LockError> {
        Ok(self.name)
    }
    #[distributed_lock(key = "s:{self.id}")]
    async fn by_pin(self: Pin<&mut Self>) -> Result<u64, LockError> {
        Ok(self.get_mut().id)
    }
    #[distributed_lock(key = "s:{self.id}", locks = self.inner)]
    async fn with_lifetime<'a>(&'a self, other: &'a str) -> Result<&'a str, LockError> {
        if other.is_empty() {
            return Ok(&self.name);
        }
        Ok(other)
    }
    #[distributed_lock(key = "s")]
    async fn without(locks: LockManager, id: u64) -> Result<Self, LockError> {
        let inner = Arc::new(Inner { locks });
        let (guarded, name) = (Mutex::new(inner.clone()), String::new());
        Ok(Self { inner, guarded, id, name })
    }
    #[distributed_lock(key = "s:{id}")]
    async fn unused_self(&self, id: u64) -> Result<u64, LockError> {
        Ok(id)
    }
}
