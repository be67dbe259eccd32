//! No return type.
// error: `f` returns nothing, so a failed lock would go unnoticed
// at: f

use lock_core::distributed_lock;

#[distributed_lock(key = "order")]
async fn f() {}
