//! A return type that is neither remembered nor carries a failed lock: one error.
// error: `u64` cannot be remembered for later callers, or cannot represent a lock failure
// at: u64
// note: return `Result<T, E>` where `T: serde::Serialize + serde::de::DeserializeOwned` and `E: From<lock_core::LockError>`
// error: `Receipt` cannot be remembered for later callers, or cannot represent a lock failure
// at: Receipt
use lock_core::run_once;

pub struct Receipt;

#[run_once(key = "k", keep = "1h")]
pub async fn run() -> u64 {
    1
}

#[run_once(key = "k", keep = "1h", on_drop = cancel)]
pub async fn run_with_its_caller() -> Receipt {
    Receipt
}
