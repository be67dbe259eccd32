//! `run_once` without the `once` feature.
// features: macros
// error: `run_once` needs the `once` feature of `lock-core`: add it to `features` of `lock-core` in your `Cargo.toml`
// at: #[run_once(key = "k", keep = "1h")]
use lock_core::{LockError, run_once};

#[run_once(key = "k", keep = "1h")]
pub async fn run() -> Result<u64, LockError> {
    Ok(1)
}

/// Its callers compile.
pub async fn call() -> Result<u64, LockError> {
    run().await
}
