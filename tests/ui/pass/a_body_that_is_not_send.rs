//! A body that is not send.

use lock_core::{LockError, distributed_lock};

use std::{cell::RefCell, rc::Rc};

#[distributed_lock(key = "n:{m}")]
async fn f(n: Rc<RefCell<String>>, m: u8) -> Result<Rc<u8>, LockError> {
    let shared = Rc::new(m);
    tokio::task::yield_now().await;
    n.borrow_mut().push('x');
    Ok(shared)
}
