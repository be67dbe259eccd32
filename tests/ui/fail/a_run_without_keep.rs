//! A run without keep.
// error: missing `keep`: set for how long a repeat gets the result, as in `keep = "24h"`
// at: #[lock_core::run_once(key = "k")]
use lock_core::LockError;

#[lock_core::run_once(key = "k")]
pub async fn run() -> Result<u8, LockError> {
    Ok(1)
}
