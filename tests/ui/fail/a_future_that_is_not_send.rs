//! A body that is not `Send`: the compiler points at the call that needs it.
// error: future cannot be sent between threads safely
// at: f(std::rc::Rc::new(1))

use lock_core::{LockError, distributed_lock};

async fn f_plain(n: std::rc::Rc<u8>) {
    tokio::task::yield_now().await;
    drop(n);
}
#[distributed_lock(key = "n:{n}")]
async fn f(n: std::rc::Rc<u8>) -> Result<(), LockError> {
    f_plain(n).await;
    Ok(())
}
fn is_send<T: Send>(_: T) {}
fn check() {
    is_send(f(std::rc::Rc::new(1)));
}
