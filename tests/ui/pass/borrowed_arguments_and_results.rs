//! Borrowed arguments and results.

use lock_core::{LockError, distributed_lock};

use std::{borrow::Cow, collections::HashMap};

#[distributed_lock(key = "map:{key}")]
async fn entry<'m>(map: &'m mut HashMap<String, u64>, key: &str) -> Result<&'m mut u64, LockError> {
    Ok(map.entry(key.to_owned()).or_default())
}

#[distributed_lock(key = "text:{text}")]
async fn trimmed(text: &str) -> Result<Cow<'_, str>, LockError> {
    if text.is_empty() {
        return Ok("empty".into());
    }
    Ok(text.trim().into())
}
