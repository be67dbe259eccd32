//! An early return coerces to a trait object.

use lock_core::{LockError, distributed_lock};

trait Shape {}
impl Shape for u8 {}
impl Shape for u16 {}

#[distributed_lock(key = "shape:{n}")]
async fn shape(n: u8) -> Result<Box<dyn Shape>, LockError> {
    if n > 1 {
        return Ok(Box::new(n));
    }
    Ok(Box::new(1_u16))
}

#[distributed_lock(key = "shape:{n}", on_error = |_| Box::new(0_u8))]
async fn bare(n: u8) -> Box<dyn Shape> {
    if n > 1 {
        return Box::new(n);
    }
    Box::new(1_u16)
}
