//! A client of another version of the `redis` crate.
// error: mismatched types
// at: client
// note: `redis::Client` and `lock_core::redis::Client` have similar names, but are actually distinct types
// error: mismatched types
// at: client

use lock_core::{LockError, LockManager, LockManagerBuilder, redis::AsyncConnectionConfig};

// For the compiler, the same crate in another version is another crate.
mod redis {
    pub struct Client;
}

pub async fn one(client: redis::Client) -> Result<LockManager, LockError> {
    LockManager::builder().client(client).await
}
pub fn through(client: redis::Client) -> LockManagerBuilder {
    LockManager::builder().through(client, AsyncConnectionConfig::new())
}
