//! Options that only a run has.
// error: `keep` is not an option of `distributed_lock`: it belongs to `run_once`, which keeps the result of the body for later callers: write `#[run_once(…)]`, or `min_hold` for the shortest time that the lock is held
// at: keep
// error: `fingerprint` is not an option of `distributed_lock`: it belongs to `run_once`, which compares it with that of an earlier request: write `#[run_once(…)]`, or leave it out
// at: fingerprint
use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "k", keep = "1h", fingerprint = id)]
pub async fn run(id: u8) -> Result<u8, LockError> {
    Ok(id)
}
