//! A counter of open operations, which lets a shutdown wait until all of them are closed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::runtime::catch_panic::catch_panic;

/// The pause between two checks of a blocked thread. Such a thread is blocked only once, at the end of its program.
const LOOK_PAUSE: Duration = Duration::from_micros(500);

/// Counts open operations, and notifies waiters when none is open any more.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    count: AtomicUsize,
    emptied: Notify,
}

/// An open operation, which is closed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Open(Arc<Tally>);

impl Tally {
    /// Creates a tally with one open operation, which [`close_one`](Self::close_one) closes.
    pub(crate) fn of_one() -> Self {
        Self {
            count: AtomicUsize::new(1),
            emptied: Notify::new(),
        }
    }

    /// Opens one operation, which [`close_one`](Self::close_one) closes.
    pub(crate) fn open_one(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn open(self: &Arc<Self>) -> Open {
        self.open_one();
        Open(self.clone())
    }

    pub(crate) fn close_one(&self) {
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            // This wakes user tasks, and a waker may panic.
            catch_panic(|| self.emptied.notify_waiters());
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Waits for a moment at which nothing is open.
    pub(crate) async fn emptied(&self) {
        loop {
            // Created before the check, because the last operation may be closed between the two.
            let emptied = self.emptied.notified();
            if self.count() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Like [`emptied`](Self::emptied), but blocks the thread, and not longer than until `deadline`.
    pub(crate) fn block_until_emptied(&self, deadline: Instant) {
        while self.count() > 0 && Instant::now() < deadline {
            thread::sleep(LOOK_PAUSE);
        }
    }
}

/// Opens another operation.
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

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Wake, Waker},
    };

    use super::*;

    struct Broken;

    impl Wake for Broken {
        fn wake(self: Arc<Self>) {
            panic!("the user's executor panicked");
        }
    }

    #[test]
    fn a_waker_that_panics_does_not_interrupt_the_drop_that_wakes_it() {
        let tally = Arc::<Tally>::default();
        let open = tally.open();
        let waker = Waker::from(Arc::new(Broken));
        let mut emptied = pin!(tally.emptied());
        let mut task = Context::from_waker(&waker);
        assert!(emptied.as_mut().poll(&mut task).is_pending());
        drop(open);
        assert_eq!(tally.count(), 0);
    }
}
