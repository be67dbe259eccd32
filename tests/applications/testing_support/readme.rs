use lock_core::{LockError, LockManager, distributed_lock, with_locks};

#[distributed_lock(key = "order:{order_id}", ttl = "10s")]
async fn charge(order_id: u64) -> Result<(), LockError> {
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_order_that_is_charged_elsewhere_is_not_charged_again() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    faults.busy("order:42"); // or: lose, expire, unavailable, delay
    let charged = with_locks(locks, charge(42)).await;
    assert!(charged.is_err_and(|error| error.is_busy()));
}
