//! Return types that cannot represent a failed lock.

use lock_core::{distributed_lock, run_once};

// error: `Result<u64, ParseIntError>` cannot represent a lock failure
// at: Answer<u64>
#[distributed_lock(key = "order")]
async fn a_return_type_that_is_an_alias() -> Answer<u64> { Ok(1) }
type Answer<T> = Result<T, std::num::ParseIntError>;

// One error if the value can be neither stored nor made from a failed lock.
// error: `u64` cannot be remembered for later callers, or cannot represent a lock failure
// at: u64
// note: return `Result<T, E>` where `T: serde::Serialize + serde::de::DeserializeOwned` and `E: From<lock_core::LockError>`
// error: `Receipt` cannot be remembered for later callers, or cannot represent a lock failure
// at: Receipt
pub struct Receipt;
#[run_once(key = "k", keep = "1h")]
pub async fn a_return_type_that_is_neither_remembered_nor_a_failure() -> u64 { 1 }
#[run_once(key = "k", keep = "1h", on_drop = cancel)]
pub async fn run_with_its_caller() -> Receipt { Receipt }

// error: a function that never returns cannot report a failed lock
// at: !
#[distributed_lock(key = "order")]
async fn a_function_that_never_returns() -> ! {
    loop {
        tokio::task::yield_now().await;
    }
}

// error: a failed lock cannot become an `impl Trait`
// at: impl Sized
#[distributed_lock(key = "order")]
async fn impl_trait_as_a_whole() -> impl Sized { 1 }

// error: `no_return_type` returns nothing, so a failed lock would go unnoticed
// at: no_return_type
#[distributed_lock(key = "order")]
async fn no_return_type() {}
