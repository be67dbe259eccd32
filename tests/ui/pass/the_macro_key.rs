//! The macro key.

use lock_core::{LockKey, key};
fn keys(id: u64, order: &(u64, String), r#type: u8) -> [LockKey; 5] {
    let other = id + 1;
    [
        key!("order:{id}"),
        key!("order:{order.1}:{other:03}"),
        key!("fixed"),
        key!("t:{type}:{u64::MAX}"),
        key!("{{x}}:{order.0}"),
    ]
}

/// No temporary value of the macro lives on while the statement around it awaits.
fn spawned(locks: lock_core::LockManager, id: u64) {
    tokio::spawn(async move {
        let guard = locks.acquire(key!("order:{id}"), lock_core::LockOptions::default()).await;
        drop(guard);
    });
}
