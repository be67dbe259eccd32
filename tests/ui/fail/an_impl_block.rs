//! An impl block.
// error: only a function can be locked, not an impl block: put the attribute on each function inside
// at: impl

use lock_core::distributed_lock;

#[distributed_lock(key = "order")]
impl S {
    async fn f() {}
}
struct S;
