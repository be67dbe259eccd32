//! Values of unsized and borrowed types.

use lock_core::{LockError, distributed_lock};

use std::{fmt::Display, rc::Rc};
#[distributed_lock(key = "a:{a}:{b}:{c}:{d}:{long}")]
async fn f(
    a: &str,
    b: Box<dyn Display>,
    c: &dyn Display,
    d: Rc<str>,
    long: &&u8,
) -> Result<(), LockError> {
    let _ = (b, c, d);
    Ok(())
}
#[distributed_lock(key = "a:{a}")]
async fn g<T: Display + ?Sized>(a: &T) -> Result<(), LockError> {
    Ok(())
}
