//! A value with an unknown format. The compiler alone would point at a wrong place.
// error: unknown format `zz`: a width, a precision and `x`, `X`, `o`, `b`, `e` or `E` may follow the colon, as in `{id:08x}`⏎    order:{id:zz}⏎             ^^^
// at: "order:{id:zz}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{id:zz}")]
async fn f(id: u64) -> Result<u64, LockError> {
    Ok(id)
}
