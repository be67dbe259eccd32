//! A body that continues without its caller, but is not `Send`.
// error: with `on_drop = finish`, the body runs in a task of its own, but it is not `Send`
// at: #[run_once(key = "k", keep = "1h")]
// note: write `on_drop = cancel`
use std::rc::Rc;

use lock_core::{LockError, run_once};

#[run_once(key = "k", keep = "1h")]
pub async fn run() -> Result<u8, LockError> {
    let number = Rc::new(1);
    tokio::task::yield_now().await;
    Ok(*number)
}
