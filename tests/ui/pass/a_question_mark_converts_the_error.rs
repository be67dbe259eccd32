//! A question mark converts the error.

use lock_core::{LockError, distributed_lock};

enum ApiError {
    Lock(LockError),
    Parse(std::num::ParseIntError),
}
impl From<LockError> for ApiError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}
impl From<std::num::ParseIntError> for ApiError {
    fn from(error: std::num::ParseIntError) -> Self {
        Self::Parse(error)
    }
}

#[distributed_lock(key = "n:{text}")]
async fn parse(text: &str) -> Result<u64, ApiError> {
    let number: u64 = text.parse()?;
    Ok(number + text.parse::<u64>()?)
}
