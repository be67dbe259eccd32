//! A renamed crate.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "n:{n}:{n:3}", crate = renamed::deeper::locks, lease = lease, on_busy = skip, on_lost = continue)]
async fn f(n: u64) -> Result<Option<u64>, LockError> {
    let _ = lease;
    Ok(Some(n))
}

#[distributed_lock(key = "n:{n}", crate = ::lock_core)]
async fn g(n: u64) -> Result<u64, LockError> {
    Ok(n)
}

mod renamed {
    pub(crate) mod deeper {
        pub(crate) use lock_core as locks;
    }
}
