//! Skip on every type with a value that means skipped.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "n", on_busy = skip)]
async fn result_of_unit() -> Result<(), LockError> {
    Ok(())
}
#[distributed_lock(key = "n", on_busy = skip)]
async fn result_of_option() -> Result<Option<u8>, LockError> {
    Ok(Some(1))
}
#[distributed_lock(key = "n", on_busy = skip, on_error = |_| None)]
async fn option() -> Option<u8> {
    Some(1)
}
#[distributed_lock(key = "n", on_busy = skip, on_error = |error| eprintln!("{error}"))]
async fn unit() {}
#[distributed_lock(key = "n", on_busy = skip)]
async fn opaque() -> Result<Option<impl Sized>, LockError> {
    Ok(Some(1))
}
