//! A run of a list of keys.
// error: a body runs once for a single key: write one key with all values, as in `"transfer:{from}:{to}"`
// at: ["from:{from}", "to:{to}"]
use lock_core::{LockError, run_once};

#[run_once(key = ["from:{from}", "to:{to}"], keep = "1h")]
pub async fn run(from: u8, to: u8) -> Result<u8, LockError> {
    Ok(from + to)
}
