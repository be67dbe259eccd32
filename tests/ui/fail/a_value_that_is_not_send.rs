//! A return value that is not `Send`: the future contains it while the lock is released.
// error: `Rc<u8>` cannot be sent between threads safely
// at: f(1)

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "n:{n}")]
async fn f(n: u8) -> Result<std::rc::Rc<u8>, LockError> {
    Ok(std::rc::Rc::new(n))
}
fn is_send<T: Send>(_: T) {}
fn check() {
    is_send(f(1));
}
