//! An argument that the key moves, while `on_error` uses it: the error is at the closure, not at the argument.
// error: borrow of moved value: `name`
// at: |e| Err(format!("{name}: {e}"))
// note: value borrowed here after move

use lock_core::distributed_lock;

#[distributed_lock(key = name, on_error = |e| Err(format!("{name}: {e}")))]
async fn f(name: String) -> Result<(), String> {
    Ok(())
}
