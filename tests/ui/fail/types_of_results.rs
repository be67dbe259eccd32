//! Results that cannot express that the lock failed, or that the body was skipped.

use lock_core::{LockError, distributed_lock};

// error: `u8` cannot represent a lock failure
// at: u8
#[distributed_lock(key = "order")]
fn a_boxed_future_that_cannot_fail() -> std::pin::Pin<Box<dyn std::future::Future<Output = u8>>> {
    Box::pin(async move { 1 })
}

// error: `Result<u64, String>` cannot represent a lock failure
// at: Result<u64, String>
#[distributed_lock(key = "order")]
async fn an_error_type_that_cannot_be_a_lock_error() -> Result<u64, String> { Ok(1) }

// error: `u64` cannot express that the body was skipped
// at: u64
#[distributed_lock(key = "order", on_busy = skip, on_error = |_| 0)]
async fn skip_on_a_number() -> u64 { 1 }

// error: `Result<u64, LockError>` cannot express both that the body was skipped and that the lock failed
// at: Result<u64, LockError>
// note: Option
#[distributed_lock(key = "order", on_busy = skip)]
async fn skip_on_a_result_of_a_number() -> Result<u64, LockError> { Ok(1) }

// error: `Result<(), String>` cannot express both that the body was skipped and that the lock failed
// at: Result<(), String>
#[distributed_lock(key = "order", on_busy = skip)]
async fn skip_with_an_error_that_cannot_be_a_lock_error() -> Result<(), String> { Ok(()) }
