//! Counts what is open, so that a shutdown can wait until it is all closed.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// Counts what is open and tells when it is all closed.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    count: AtomicUsize,
    emptied: Notify,
}

/// One open thing; closes when dropped.
#[derive(Debug)]
pub(crate) struct Open(Arc<Tally>);

impl Tally {
    pub(crate) fn open(self: &Arc<Self>) -> Open {
        self.count.fetch_add(1, Ordering::AcqRel);
        Open(self.clone())
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until nothing is open, if only for a moment.
    pub(crate) async fn emptied(&self) {
        let mut emptied = std::pin::pin!(self.emptied.notified());
        loop {
            // Register before the check: the last one may close between the two.
            emptied.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            emptied.as_mut().await;
            emptied.set(self.emptied.notified());
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.emptied.notify_waiters();
        }
    }
}
