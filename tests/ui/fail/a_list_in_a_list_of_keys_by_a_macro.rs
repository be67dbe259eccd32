//! A list in a list of keys, by a macro.
// error: write all keys in one
// at: ["b", "c"]

use lock_core::{LockError, distributed_lock};

macro_rules! locked {
    ($name:ident($arg:ident), $list:expr) => {
        #[distributed_lock(key = ["a:{name}", $list])]
        async fn $name(name: String, $arg: u64) -> Result<u64, LockError> {
            Ok($arg + name.len() as u64)
        }
    };
}

locked!(f(order_id), ["b", "c"]);
