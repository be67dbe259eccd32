//! A thread that puts a request into the queue of a driver, and polls the driver itself: that queue need not wake a reader.

use std::cell::RefCell;

use crate::runtime::mutex::this_thread;

thread_local! {
    /// The thread, for each request that it puts into the queue of a driver which it polls itself. All threads of the explorer share this.
    static QUEUES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// This thread puts a request into the queue. Its drop ends that.
pub(super) struct Queueing(usize);

impl Queueing {
    pub(super) fn begin() -> Self {
        let thread = this_thread();
        Self::among(|threads| threads.push(thread));
        Self(thread)
    }

    pub(super) fn is_on_this_thread() -> bool {
        let thread = this_thread();
        Self::among(|threads| threads.contains(&thread)) == Some(true)
    }

    /// `None` while the thread ends: the driver's waker then wakes a reader that has nothing to do.
    fn among<T>(call: impl FnOnce(&mut Vec<usize>) -> T) -> Option<T> {
        QUEUES
            .try_with(|threads| call(&mut threads.borrow_mut()))
            .ok()
    }
}

impl Drop for Queueing {
    fn drop(&mut self) {
        Self::among(|threads| {
            let last = threads.iter().rposition(|thread| *thread == self.0);
            last.map(|last| threads.swap_remove(last))
        });
    }
}
