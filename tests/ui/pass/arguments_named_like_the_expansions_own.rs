//! Arguments named like the expansions own.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "x:{key}:{entry}:{value}:{manager}:{options}", lease = own)]
#[allow(clippy::too_many_arguments)]
async fn f(
    key: u8,
    entry: u8,
    value: u8,
    manager: u8,
    options: u8,
    private: u8,
    lease: u8,
    __arg0: u8,
    (__arg1, _): (u8, u8),
) -> Result<u8, LockError> {
    let _ = own;
    Ok(key + entry + value + manager + options + private + lease + __arg0 + __arg1)
}
