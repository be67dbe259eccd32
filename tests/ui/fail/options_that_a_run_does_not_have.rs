//! Options that a run does not have.
// error: `mode` is not an option of `run_once`: one caller runs the body, and all get its result: leave it out
// at: mode
// error: `permits` is not an option of `run_once`: one caller runs the body, and all get its result: leave it out, or write a second attribute below, `#[distributed_lock(key = …, permits = …)]`
// at: permits
// error: `renew` is not an option of `run_once`: the lease is renewed while the body runs: leave it out, or bound the time of the body with `max_hold`
// at: renew
// error: `min_hold` is not an option of `run_once`: write `keep`, the time for which a repeat gets the result
// at: min_hold
// error: `on_busy` is not an option of `run_once`: a caller waits for the result of a body that runs elsewhere: write `wait = "0s"` to get `LockError::Busy` at once
// at: on_busy
// error: `on_lost` is not an option of `run_once`: without its lease, the body could run twice at the same time, so it is dropped: leave it out, or write a longer `ttl`
// at: on_lost
// error: `release` is not an option of `run_once`: the result is stored by the release, so the release is awaited: leave it out
// at: release
use lock_core::{LockError, run_once};

#[run_once(
    key = "k",
    keep = "1h",
    mode = shared,
    permits = 3,
    renew = false,
    min_hold = "1s",
    on_busy = skip,
    on_lost = continue,
    release = background
)]
pub async fn run() -> Result<u8, LockError> {
    Ok(1)
}
