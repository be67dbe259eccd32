//! A field that resembles another. The compiler must not offer the other field in place of the whole template.
// error: no field `nme` on type `User`
// at: "order:{request.user.nme}"

use lock_core::{LockError, distributed_lock};

struct User {
    name: String,
}
struct Request {
    user: User,
}
#[distributed_lock(key = "order:{request.user.nme}")]
async fn f(request: Request) -> Result<String, LockError> {
    Ok(request.user.name)
}
