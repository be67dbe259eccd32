//! Arguments used only in the key.

use lock_core::{LockError, distributed_lock};

struct Order {
    id: u64,
}

#[distributed_lock(key = "order:{id}:{order.id}", locks = manager, ttl = ttl, wait = wait)]
async fn f(
    id: u64,
    order: Order,
    manager: lock_core::LockManager,
    ttl: std::time::Duration,
    wait: std::time::Duration,
) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = name)]
async fn g(name: &str) -> Result<(), LockError> {
    Ok(())
}
