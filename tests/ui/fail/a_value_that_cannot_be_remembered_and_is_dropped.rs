//! A value that cannot be remembered, of a body that is dropped with its caller.
// error: `u8` cannot be remembered for later callers
// at: u8
use lock_core::run_once;

#[run_once(key = "k", keep = "1h", on_drop = cancel, on_error = |_| 0)]
pub async fn run() -> u8 {
    1
}
