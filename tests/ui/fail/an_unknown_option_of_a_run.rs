//! An unknown option of a run.
// error: unknown option `retention`: did you mean `keep`?
// at: retention
// error: unknown option `semaphore`: the options are `key`, `ttl`, `wait`, `max_hold`, `on_error`, `lease`, `locks`, `crate`, `on_drop`, `keep`, `fingerprint`
// at: semaphore
// error: unknown option `fingerprnt`: did you mean `fingerprint`?
// at: fingerprnt
use lock_core::{LockError, run_once};

#[run_once(key = "k", retention = "1h", semaphore = 3, fingerprnt = id)]
pub async fn run(id: u8) -> Result<u8, LockError> {
    Ok(id)
}
