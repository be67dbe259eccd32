//! Observes whether a value was dropped, as the values of a body are when the body is cancelled.

use std::sync::{Arc, Weak};

/// A value that a test moves into a body.
#[derive(Debug)]
pub struct DropFlag(#[expect(dead_code, reason = "kept for its drop")] Arc<()>);

/// The observer of a [`DropFlag`].
#[derive(Debug)]
pub struct Dropped(Weak<()>);

impl DropFlag {
    /// Returns a flag, and its observer.
    pub fn new() -> (Self, Dropped) {
        let alive = Arc::new(());
        let dropped = Dropped(Arc::downgrade(&alive));
        (Self(alive), dropped)
    }
}

impl Dropped {
    /// Returns whether the flag was dropped.
    pub fn is_true(&self) -> bool {
        self.0.strong_count() == 0
    }
}
