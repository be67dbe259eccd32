//! A return type of the users own.

use lock_core::{LockError, distributed_lock};

use lock_core::FromLockError;
enum Answer {
    Busy,
    Fine(u8),
}
impl FromLockError for Answer {
    fn from_lock_error(_: LockError) -> Self {
        Self::Busy
    }
}
#[distributed_lock(key = "n")]
async fn f(n: u8) -> Answer {
    if n > 1 {
        return Answer::Busy;
    }
    Answer::Fine(n)
}
