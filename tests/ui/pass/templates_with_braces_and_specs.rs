//! Templates with braces and specs.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "{{order:{id}}}:{id:08}:{id:>4}:{name:*<10.3}:{id:x}:{{}}")]
async fn f(id: u64, name: &str) -> Result<u64, LockError> {
    Ok(id + name.len() as u64)
}
#[distributed_lock(key = r#"a "quoted" key {id}"#)]
async fn raw(id: u64) -> Result<u64, LockError> {
    Ok(id)
}
#[distributed_lock(key = "größe:{id}→{id}")]
async fn unicode(id: u64) -> Result<u64, LockError> {
    Ok(id)
}
