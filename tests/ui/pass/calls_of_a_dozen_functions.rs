//! A dozen functions that call each other, and are spawned. The compiler must stay within its recursion limit of 128.

use lock_core::{LockError, distributed_lock, run_once};

macro_rules! dozen {
    ($attribute:meta, $last:ident, $($function:ident)*) => {
        #[$attribute]
        async fn $last(n: u64) -> Result<u64, LockError> {
            tokio::task::yield_now().await;
            Ok(n)
        }
        dozen!(@ $attribute, $last, $($function)*);
    };
    (@ $attribute:meta, $callee:ident, $function:ident $($rest:ident)*) => {
        #[$attribute]
        async fn $function(n: u64) -> Result<u64, LockError> {
            $callee(n).await
        }
        dozen!(@ $attribute, $function, $($rest)*);
    };
    (@ $attribute:meta, $first:ident,) => {
        /// Spawns the call.
        pub fn spawn() {
            tokio::spawn($first(1));
        }
    };
}

/// Bodies that are dropped with their callers.
pub mod locked {
    use super::{LockError, distributed_lock};
    dozen!(distributed_lock(key = "k"), f1, f2 f3 f4 f5 f6 f7 f8 f9 f10 f11 f12);
}

/// Bodies that continue without their callers.
pub mod finishing {
    use super::{LockError, distributed_lock};
    dozen!(distributed_lock(key = "k", on_drop = finish), f1, f2 f3 f4 f5 f6 f7 f8 f9 f10 f11 f12);
}

/// Runs that are dropped with their callers.
pub mod once {
    use super::{LockError, run_once};
    dozen!(run_once(key = "k", keep = "1h", on_drop = cancel), f1, f2 f3 f4 f5 f6 f7 f8 f9 f10 f11 f12);
}

/// Runs that continue without their callers.
pub mod once_finishing {
    use super::{LockError, run_once};
    dozen!(run_once(key = "k", keep = "1h"), f1, f2 f3 f4 f5 f6 f7 f8 f9 f10 f11 f12);
}
