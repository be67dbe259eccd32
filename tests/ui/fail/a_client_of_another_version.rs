//! A client of another version of the crate `redis`.
// error: `redis::Client` is not the client of the version of `redis` that lock-core uses
// at: client
// note: another version of the crate `redis`
// error: `redis::Client` is not the client of the version of `redis` that lock-core uses
// at: client
// error: `redis::Client` is not the client of the version of `redis` that lock-core uses
// at: [client]
// error: `redis::Client` is not the client of the version of `redis` that lock-core uses
// at: client

use lock_core::{LockError, LockManager, LockManagerBuilder, redis::AsyncConnectionConfig};

// For the compiler, the same crate in another version is another crate.
mod redis {
    pub struct Client;
}

pub async fn one(client: redis::Client) -> Result<LockManager, LockError> {
    LockManager::builder().client(client).await
}
pub async fn with_settings(client: redis::Client) -> Result<(), LockError> {
    let locks = LockManager::builder().client_with(client, AsyncConnectionConfig::new()).await?;
    locks.check().await?;
    Ok(())
}
pub async fn several(client: redis::Client) -> Result<LockManager, LockError> {
    LockManager::builder().clients([client]).await
}
pub fn through(client: redis::Client) -> LockManagerBuilder {
    LockManager::builder().through(client, AsyncConnectionConfig::new())
}
