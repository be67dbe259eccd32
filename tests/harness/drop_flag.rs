//! Observes whether a value was dropped, as the values of a body are when the body is cancelled.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// A value that records its drop.
#[derive(Debug)]
pub struct DropFlag(Arc<AtomicBool>);

/// The observer of a [`DropFlag`].
#[derive(Debug)]
pub struct Dropped(Arc<AtomicBool>);

impl DropFlag {
    /// Returns a flag, and its observer.
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
