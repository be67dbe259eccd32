//! Arguments that are mutable or ignored.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{id}")]
async fn f(mut id: u64, _: String, _unused: u8, mut text: String) -> Result<String, LockError> {
    id += 1;
    text.push_str(&id.to_string());
    Ok(text)
}
