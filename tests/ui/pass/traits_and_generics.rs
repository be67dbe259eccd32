//! Methods of traits, and generic functions.

use async_trait::async_trait;
use lock_core::{LockError, LockManager, distributed_lock};
use std::{fmt::Display, rc::Rc};

// Generic functions.
#[distributed_lock(key = "of:{id}")]
async fn generic<'a, I, T, const N: usize>(id: I, items: &'a [T; N]) -> Result<&'a T, LockError>
where
    I: Display + Clone,
    T: Sync + 'a,
{
    let _ = id.clone();
    items.first().ok_or(LockError::NotConfigured)
}

#[distributed_lock(key = "of:{id}")]
async fn impl_trait_arguments(id: impl Display + Send, then: impl AsyncFnOnce(u8) -> u8) -> Result<u8, LockError> {
    eprintln!("{id}");
    Ok(then(1).await)
}

#[distributed_lock(key = "n")]
async fn closures_for_all_lifetimes<F>(act: F) -> Result<usize, LockError>
where
    F: for<'a> Fn(&'a str) -> &'a str,
{
    Ok(act("x").len())
}

async fn call<F: AsyncFn(usize) -> Result<usize, LockError>>(f: F) -> Result<usize, LockError> {
    f(1).await
}

#[distributed_lock(key = "n:{n}")]
async fn passed_as_a_function(n: usize) -> Result<usize, LockError> {
    Ok(n)
}

async fn passes_it() -> Result<usize, LockError> {
    call(passed_as_a_function).await
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

// Async functions in traits.
#[allow(async_fn_in_trait)]
trait Native {
    type Item: Default;
    async fn load(&self, id: u64) -> Result<Self::Item, LockError>;
    #[distributed_lock(key = "store:{id}")]
    async fn save(&mut self, id: u64) -> Result<Self::Item, LockError> {
        self.load(id).await
    }
}

struct Memory {
    id: u64,
    shared: Rc<u64>,
}

impl Native for Memory {
    type Item = String;
    #[distributed_lock(key = "store:{id}")]
    async fn load(&self, id: u64) -> Result<Self::Item, LockError> {
        Ok(id.to_string())
    }
}

// The macro `async_trait`.
struct Path<T>(T);
struct Table {
    id: u64,
    locks: LockManager,
}

#[async_trait]
trait Boxed {
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
impl Boxed for Table {
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

#[async_trait(?Send)]
trait NotSend {
    async fn load(&self, id: u64) -> Result<Rc<u64>, LockError>;
}

#[async_trait(?Send)]
impl NotSend for Memory {
    #[distributed_lock(key = "store:{id}:{self.id}")]
    async fn load(&self, id: u64) -> Result<Rc<u64>, LockError> {
        let shared = Rc::clone(&self.shared);
        tokio::task::yield_now().await;
        Ok(shared)
    }
}
