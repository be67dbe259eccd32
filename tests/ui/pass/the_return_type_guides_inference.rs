//! The return type guides inference.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "n", on_error = |_| 0)]
async fn parsed() -> u64 {
    "5".parse().unwrap_or_default()
}

#[distributed_lock(key = "n")]
async fn collected(texts: Vec<String>) -> Result<Vec<u8>, LockError> {
    let numbers = texts
        .iter()
        .map(|text| text.parse::<u8>().map_err(|_| LockError::NotConfigured));
    numbers.collect()
}

#[distributed_lock(key = "n", on_error = |_| Default::default())]
async fn default<T: Default>() -> T {
    Default::default()
}
