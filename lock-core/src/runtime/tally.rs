//! Counts what is open, so that a shutdown can wait until all of it is closed.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// Counts what is open, and reports when nothing is open any more.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    count: AtomicUsize,
    emptied: Notify,
}

/// One open thing; closes when dropped.
#[derive(Debug)]
pub(crate) struct Open(Arc<Tally>);

impl Tally {
    /// One thing is open already. It is closed by [`close_one`](Self::close_one).
    pub(crate) fn of_one() -> Self {
        Self {
            count: AtomicUsize::new(1),
            emptied: Notify::new(),
        }
    }

    pub(crate) fn open(self: &Arc<Self>) -> Open {
        self.count.fetch_add(1, Ordering::AcqRel);
        Open(self.clone())
    }

    pub(crate) fn close_one(&self) {
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.emptied.notify_waiters();
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Waits for a moment at which nothing is open.
    pub(crate) async fn emptied(&self) {
        let mut emptied = pin!(self.emptied.notified());
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

    /// The same, but blocks the thread, for `at_most` this long. Returns whether nothing was open.
    pub(crate) fn block_until_emptied(&self, at_most: Duration) -> bool {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut emptied = pin!(self.emptied());
        let start = Instant::now();
        loop {
            if let Poll::Ready(()) = emptied.as_mut().poll(&mut context) {
                return true;
            }
            let left = at_most.saturating_sub(start.elapsed());
            if left.is_zero() {
                return false;
            }
            thread::park_timeout(left);
        }
    }
}

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Opens another one.
impl Clone for Open {
    fn clone(&self) -> Self {
        self.0.open()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close_one();
    }
}
