//! A pattern that another attribute has taken apart.
// error: no parameter is called `a`: another attribute has renamed some: put `#[distributed_lock]` above it
// at: "order:{a}"

use lock_core::{LockError, distributed_lock};

macro_rules! renaming {
    ($(#[$attr:meta])*) => {
        $(#[$attr])*
        async fn f(__arg0: (u64, u64)) -> Result<u64, LockError> {
            let (a, b) = __arg0;
            Ok(a + b)
        }
    };
}
renaming! {
    #[distributed_lock(key = "order:{a}")]
}
