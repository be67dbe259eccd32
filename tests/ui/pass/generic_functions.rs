//! Generic functions.

use lock_core::{LockError, distributed_lock};

use std::fmt::Display;

#[distributed_lock(key = "of:{id}")]
async fn f<'a, I, T, const N: usize>(id: I, items: &'a [T; N]) -> Result<&'a T, LockError>
where
    I: Display + Clone,
    T: Sync + 'a,
{
    let _ = id.clone();
    items.first().ok_or(LockError::NotConfigured)
}
