//! Methods of traits, and generic functions.

use async_trait::async_trait;
use lock_core::{LockError, distributed_lock};
use std::fmt::Display;
use std::rc::Rc;

// A fn pointer and a trait bound on the function item.
#[distributed_lock(key = "n:{n}")]
async fn handler(n: u64) -> Result<u64, LockError> {
    Ok(n)
}
async fn call<F: AsyncFn(u64) -> Result<u64, LockError>>(f: F) -> Result<u64, LockError> {
    f(1).await
}
async fn use_it() -> Result<u64, LockError> {
    call(handler).await
}

// Associated items and const parameters in the key.
trait Named {
    const NAME: &'static str;
    fn tag(&self) -> String;
}
struct Pool<T, const N: usize>(T);
impl<T: Named, const N: usize> Pool<T, N> {
    const KIND: &'static str = "pool";
    fn shard(_: &T) -> usize {
        N
    }
    #[distributed_lock(
        key = "{Self::KIND}:{T::NAME}:{N}:{self.0.tag()}:{Self::shard(&self.0)}:{<T as Named>::NAME}:{n}"
    )]
    async fn f(&self, n: u8) -> Result<u8, LockError> {
        Ok(n)
    }
}

// Async trait inside.
#[distributed_lock(key = "outer")]
async fn outer() -> Result<u64, LockError> {
    struct Local;
    #[async_trait]
    trait Store {
        async fn load(&self, id: u64) -> u64;
    }
    #[async_trait]
    impl Store for Local {
        async fn load(&self, id: u64) -> u64 {
            id
        }
    }
    Ok(Local.load(1).await)
}

// Async trait outside.
struct Path<T>(T);
struct Memory {
    id: u64,
    locks: lock_core::LockManager,
}

#[async_trait]
trait Store {
    async fn load(&self, id: u64) -> Result<String, LockError>;
    #[distributed_lock(key = "store:{id}")]
    async fn twice(&self, id: u64) -> Result<String, LockError>
    where
        Self: Sync,
    {
        self.load(id).await
    }
    async fn change(&mut self, path: Path<u64>) -> Result<&str, LockError>;
    async fn consume(self: Box<Self>) -> Result<u64, LockError>;
}

#[async_trait]
impl Store for Memory {
    #[distributed_lock(key = "store:{id}:{self.id}", locks = self.locks)]
    async fn load(&self, id: u64) -> Result<String, LockError> {
        if id > 3 {
            return Ok(String::new());
        }
        Ok(format!("{id}{}", self.id))
    }
    #[distributed_lock(key = "store:{id}:{self.id}", locks = self.locks, lease = lease)]
    async fn change(&mut self, Path(mut id): Path<u64>) -> Result<&str, LockError> {
        id += 1;
        self.id = id + u64::from(lease.fencing_token());
        Ok("x")
    }
    #[distributed_lock(key = "store:{self.id}")]
    async fn consume(self: Box<Self>) -> Result<u64, LockError> {
        Ok(self.id)
    }
}

// Async trait without send.
struct MemoryAsyncTraitWithoutSend {
    id: Rc<u64>,
}

#[async_trait(?Send)]
trait StoreAsyncTraitWithoutSend {
    async fn load(&self, id: u64) -> Result<Rc<u64>, LockError>;
}

#[async_trait(?Send)]
impl StoreAsyncTraitWithoutSend for MemoryAsyncTraitWithoutSend {
    #[distributed_lock(key = "store:{id}:{self.id}")]
    async fn load(&self, id: u64) -> Result<Rc<u64>, LockError> {
        let shared = Rc::clone(&self.id);
        tokio::task::yield_now().await;
        if id > 3 {
            return Ok(shared);
        }
        Ok(Rc::clone(&self.id))
    }
}

// Generic functions.
#[distributed_lock(key = "of:{id}")]
async fn generic_functions<'a, I, T, const N: usize>(id: I, items: &'a [T; N]) -> Result<&'a T, LockError>
where
    I: Display + Clone,
    T: Sync + 'a,
{
    let _ = id.clone();
    items.first().ok_or(LockError::NotConfigured)
}

// Impl trait arguments.
#[distributed_lock(key = "of:{id}")]
async fn impl_trait_arguments(id: impl Display + Send, then: impl AsyncFnOnce(u8) -> u8) -> Result<u8, LockError> {
    eprintln!("{id}");
    Ok(then(1).await)
}

// Native async traits.
#[allow(async_fn_in_trait)]
trait StoreNativeAsyncTraits {
    type Item: Default;
    async fn load(&self, id: u64) -> Result<Self::Item, LockError>;
    #[distributed_lock(key = "store:{id}")]
    async fn save(&mut self, id: u64) -> Result<Self::Item, LockError> {
        self.load(id).await
    }
}

struct MemoryNativeAsyncTraits;

impl StoreNativeAsyncTraits for MemoryNativeAsyncTraits {
    type Item = String;
    #[distributed_lock(key = "store:{id}")]
    async fn load(&self, id: u64) -> Result<Self::Item, LockError> {
        Ok(id.to_string())
    }
}

// Trait objects and higher ranked closures.
#[distributed_lock(key = "n")]
async fn trait_objects_and_higher_ranked_closures(act: &(dyn Fn(&str) -> &str + Sync), text: &str) -> Result<String, LockError> {
    Ok(act(text).to_owned())
}
#[distributed_lock(key = "n")]
async fn trait_objects_and_higher_ranked_closures_g<F>(act: F) -> Result<usize, LockError>
where
    F: for<'a> Fn(&'a str) -> &'a str,
{
    Ok(act("x").len())
}
