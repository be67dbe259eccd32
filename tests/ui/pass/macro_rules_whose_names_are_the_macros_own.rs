//! Macro rules with names that are the macros own.

use lock_core::{LockError, distributed_lock};

macro_rules! locked {
    ($name:ident) => {
        #[distributed_lock(key = "order:{id}:{self.n}")]
        async fn $name(&self, id: u64) -> Result<u64, LockError> {
            Ok(id + self.n)
        }
    };
}
struct S {
    n: u64,
}
impl S {
    locked!(f);
}

macro_rules! free {
    ($name:ident, $id:ident) => {
        #[distributed_lock(key = "order:{id}")]
        async fn $name(id: u64, $id: u64) -> Result<u64, LockError> {
            Ok(id + $id)
        }
    };
}
free!(g, id2);
