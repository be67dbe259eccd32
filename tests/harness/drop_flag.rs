//! Whether a value was dropped, as a body's are when it is cancelled.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Notes when it is dropped.
#[derive(Debug)]
pub struct DropFlag(Arc<AtomicBool>);

/// Tells whether its flag was dropped.
#[derive(Debug)]
pub struct Dropped(Arc<AtomicBool>);

impl DropFlag {
    /// Returns a flag, and what tells of it.
    pub fn new() -> (Self, Dropped) {
        let dropped = Arc::new(AtomicBool::new(false));
        (Self(dropped.clone()), Dropped(dropped))
    }
}

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Dropped {
    /// Returns whether the flag was dropped.
    pub fn is_true(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
