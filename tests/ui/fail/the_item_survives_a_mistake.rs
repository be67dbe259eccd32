//! A function with a mistake stays, so its callers cause no further errors.
// error: did you mean `order_id`?
// at: "order:{oder_id}"
// error: the key is empty
// at: ""

use lock_core::{LockError, distributed_lock};

/// Uses the lease that the attribute would have bound.
#[distributed_lock(key = "order:{oder_id}", lease = lease)]
async fn f(order_id: u64, only_in_the_key: &str) -> Result<u64, LockError> {
    Ok(lease.fencing_token().into())
}
struct S;
impl S {
    #[distributed_lock(key = "")]
    async fn method(&self, (a, b): (u8, u8)) -> Result<u8, LockError> {
        Ok(a)
    }
}
async fn use_them() -> Result<u64, LockError> {
    Ok(f(1, "x").await? + u64::from(S.method((1, 2)).await?))
}
