//! Durations in every form.

use lock_core::{LockError, distributed_lock};

use std::time::Duration;
const TTL: Duration = Duration::from_secs(3);
struct Config {
    ttl: Duration,
}
#[distributed_lock(key = "n", ttl = TTL, wait = config.ttl, max_hold = Duration::from_secs(9), min_hold = TTL / 2)]
async fn f(config: &Config) -> Result<(), LockError> {
    let _ = config;
    Ok(())
}
#[distributed_lock(key = "n", ttl = "100ms", wait = "24h", max_hold = "1h59m59s999ms")]
async fn g() -> Result<(), LockError> {
    Ok(())
}
#[distributed_lock(key = "n", ttl = std::env::var("TTL").ok().and_then(|s| s.parse().ok()).map_or(TTL, Duration::from_secs))]
async fn h() -> Result<(), LockError> {
    Ok(())
}
#[distributed_lock(key = "n", wait = "forever", ttl = "10s", max_hold = "10s", min_hold = "10s", renew = false)]
async fn i() -> Result<(), LockError> {
    Ok(())
}
#[distributed_lock(key = "n", wait = forever)]
async fn j(forever: Duration) -> Result<(), LockError> {
    Ok(())
}
