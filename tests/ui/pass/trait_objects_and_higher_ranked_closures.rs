//! Trait objects and higher ranked closures.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "n")]
async fn f(act: &(dyn Fn(&str) -> &str + Sync), text: &str) -> Result<String, LockError> {
    Ok(act(text).to_owned())
}
#[distributed_lock(key = "n")]
async fn g<F>(act: F) -> Result<usize, LockError>
where
    F: for<'a> Fn(&'a str) -> &'a str,
{
    Ok(act("x").len())
}
