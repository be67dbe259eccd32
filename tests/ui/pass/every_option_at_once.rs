//! Every option at once.

use lock_core::distributed_lock;

#[distributed_lock(
    key = "order:{order_id}",
    ttl = "1m30s",
    wait = "0s",
    renew = true,
    max_hold = "1h",
    min_hold = "100ms",
    on_busy = error,
    on_lost = cancel,
    on_error = |error| Err(error.to_string()),
    release = background,
    lease = lease,
    locks = manager,
    crate = ::lock_core,
    on_drop = cancel,
    mode = exclusive,
)]
async fn f(order_id: u64, manager: &lock_core::LockManager) -> Result<u64, String> {
    Ok(order_id + u64::from(lease.fencing_token()))
}
