//! Error types of all kinds.

use lock_core::{LockError, distributed_lock};

type Aliased<T> = Result<T, LockError>;
type Done = Result<(), Box<dyn std::error::Error + Send + Sync>>;
#[distributed_lock(key = "n")]
async fn alias() -> Aliased<u8> {
    Ok(1)
}
#[distributed_lock(key = "n")]
async fn boxed() -> Done {
    Err("x")?
}
#[distributed_lock(key = "n")]
async fn anyhow() -> anyhow::Result<u8> {
    anyhow::bail!("no")
}
#[distributed_lock(key = "n")]
async fn generic<E: From<LockError>>() -> Result<u8, E> {
    Ok(1)
}
#[distributed_lock(key = "n")]
async fn std_result() -> std::result::Result<u8, Box<dyn std::error::Error>> {
    Ok("1".parse()?)
}
