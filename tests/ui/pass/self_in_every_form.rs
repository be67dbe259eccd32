//! Self in every form.

use lock_core::{LockError, distributed_lock};

use std::{pin::Pin, rc::Rc, sync::Arc};

struct Service {
    locks: lock_core::LockManager,
    id: u64,
    name: String,
}

impl Service {
    #[distributed_lock(key = "s:{self.id}")]
    async fn by_value(self) -> Result<String, LockError> {
        Ok(self.name)
    }
    #[distributed_lock(key = "s:{self.id}")]
    async fn by_mutable_value(mut self) -> Result<Self, LockError> {
        self.id += 1;
        Ok(self)
    }
    #[distributed_lock(key = "s:{self.id}", locks = self.locks)]
    async fn by_reference(&self) -> Result<&str, LockError> {
        Ok(&self.name)
    }
    #[distributed_lock(key = "s:{self.id}", locks = self.locks)]
    async fn by_mutable_reference(&mut self, more: u64) -> Result<&mut String, LockError> {
        self.id += more;
        Ok(&mut self.name)
    }
    #[distributed_lock(key = "s:{self.id}", locks = &self.locks)]
    async fn by_arc(self: Arc<Self>) -> Result<u64, LockError> {
        Ok(self.id)
    }
    #[distributed_lock(key = "s:{self.id}")]
    async fn by_rc_reference(self: &Rc<Self>) -> Result<u64, LockError> {
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
    #[distributed_lock(key = "s:{self.id}", locks = self.locks)]
    async fn with_lifetime<'a>(&'a self, other: &'a str) -> Result<&'a str, LockError> {
        if other.is_empty() {
            return Ok(&self.name);
        }
        Ok(other)
    }
    #[distributed_lock(key = "s")]
    async fn without(id: u64) -> Result<Self, LockError> {
        Ok(Self {
            locks: lock_core::LockManager::in_memory(),
            id,
            name: String::new(),
        })
    }
    #[distributed_lock(key = "s:{id}")]
    async fn unused_self(&self, id: u64) -> Result<u64, LockError> {
        Ok(id)
    }
}
