//! An argument that the key needs, and that `on_error` moves.
// error: use of moved value: `name`
// at: move |error| { drop(name); Err(error) }

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{name}", on_error = move |error| { drop(name); Err(error) })]
async fn f(name: String) -> Result<(), LockError> { Ok(()) }
