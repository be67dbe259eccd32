//! A keep out of bounds.
// error: `keep` is not a usable duration: it is too long, and must be at most `"8760h"`
// at: "8761h"
// error: `keep` is not a usable duration: it is too short, and must be at least `"100ms"`
// at: "99ms"
// error: `keep` is not a usable duration: unknown unit `d`: use `h`, `m`, `s` or `ms`
// at: "1d"
// error: `keep` is not a usable duration: only `wait` can be `"forever"`
// at: "forever"
// error: `keep` has no value: write `keep = "24h"`
// at: keep
use lock_core::{LockError, run_once};

#[run_once(key = "k", keep = "8761h")]
pub async fn longest() -> Result<u8, LockError> {
    Ok(1)
}

#[run_once(key = "k", keep = "99ms")]
pub async fn shortest() -> Result<u8, LockError> {
    Ok(1)
}

#[run_once(key = "k", keep = "1d")]
pub async fn day() -> Result<u8, LockError> {
    Ok(1)
}

#[run_once(key = "k", keep = "forever")]
pub async fn forever() -> Result<u8, LockError> {
    Ok(1)
}

#[run_once(key = "k", keep)]
pub async fn none() -> Result<u8, LockError> {
    Ok(1)
}
