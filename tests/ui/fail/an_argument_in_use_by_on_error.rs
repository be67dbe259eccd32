//! An argument that the key moves, while `on_error` uses it: the error is at the argument, not at the closure.
// error: cannot move out of `name` because it is borrowed
// at: name
// note: borrow of `name` occurs here

use lock_core::distributed_lock;

#[distributed_lock(key = name, on_error = |e| Err(format!("{name}: {e}")))]
async fn f(name: String) -> Result<(), String> {
    Ok(())
}
