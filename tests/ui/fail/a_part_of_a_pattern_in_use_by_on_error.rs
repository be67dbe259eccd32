//! A name of a pattern that is not `Copy`, and that `on_error` uses.
// error: use of partially moved value
// at: Path
// note: value partially moved here

use lock_core::distributed_lock;

struct Path<T>(T);
#[distributed_lock(key = "order:{name}", on_error = |e| Err(format!("{name}: {e}")))]
async fn f(Path(name): Path<String>) -> Result<(), String> {
    Ok(())
}
