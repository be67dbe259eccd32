//! A value that cannot be remembered.
// error: `Result<Receipt, LockError>` cannot be remembered for later callers
// at: Result<Receipt, LockError>
// note: this value is given to every caller, in every process
// note: return `Result<T, E>` where `T: serde::Serialize + serde::de::DeserializeOwned`
use lock_core::{LockError, run_once};

pub struct Receipt;

#[run_once(key = "k", keep = "1h")]
pub async fn run() -> Result<Receipt, LockError> {
    Ok(Receipt)
}
