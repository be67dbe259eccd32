//! The reader of a shared driver: which task or thread is woken when the socket is readable.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Weak, atomic::Ordering::SeqCst},
    task::{Context, Poll, Waker},
};

use tokio::runtime::Handle;

use crate::{
    runtime::io_thread,
    store::redis::connection::{
        shared_driver::{MANAGER, Reader, SharedDriver},
        wire::shared_socket::{Polling, Registration},
    },
};

/// How many runtimes without a reactor are remembered. Others are tried again.
const MOST_WITHOUT_REACTOR: usize = 8;

impl SharedDriver {
    /// Makes a task of the caller's runtime the reader, unless a task reads already. Without a runtime that has a reactor, the
    /// manager's thread reads.
    pub(super) fn ensure_reader(self: &Arc<Self>) {
        if !self.is_watched.swap(true, SeqCst) {
            self.called.notify_one();
        }
        let number = self.reader_number.load(SeqCst);
        if number > MANAGER {
            return;
        }
        let handle = io_thread::caller().filter(|handle| handle.id() != self.manager);
        let Some((handle, registration)) =
            handle.and_then(|handle| Some((handle.clone(), self.register_in(&handle)?)))
        else {
            if number != MANAGER {
                self.read_on_the_manager(number);
            }
            return;
        };
        let number = self.last_number.fetch_add(1, SeqCst) + 1;
        let mut reader = self.reader.lock();
        if reader.number > MANAGER {
            return;
        }
        // Another thread may look between these lines. What it wakes before the new reader has polled, it wakes in vain.
        let before = self.become_reader(&mut reader, number);
        self.socket.replace(registration);
        drop(reader);
        end_earlier(before);
        // On a runtime that shuts down, the task is dropped at once, and the manager's thread reads.
        drop(handle.spawn(ReaderTask::new(self, number)));
    }

    /// `None` if the runtime has no reactor, or the process has no descriptor left.
    fn register_in(&self, handle: &Handle) -> Option<Registration> {
        let id = handle.id();
        if self.reader.lock().without_reactor.contains(&id) {
            return None;
        }
        let _inside = handle.enter();
        // A runtime cannot be asked whether it has a reactor. If it has none, this panics.
        let registered = catch_unwind(AssertUnwindSafe(|| self.socket.register_here()));
        if registered.is_err() {
            let known = &mut self.reader.lock().without_reactor;
            known.truncate(MOST_WITHOUT_REACTOR - 1);
            known.insert(0, id);
        }
        registered.ok()?.ok()
    }

    /// Returns the waker of the earlier reader, which is to end.
    pub(super) fn become_reader(&self, reader: &mut Reader, number: u64) -> Option<Waker> {
        reader.number = number;
        self.reader_number.store(number, SeqCst);
        reader.waker.take()
    }

    /// Has the reactor, and all others that want the driver to be polled, wake this task. Returns the waker before.
    pub(super) fn wake_with(&self, reader: &mut Reader, waker: &Waker) -> Option<Waker> {
        self.socket.wake(waker.clone());
        reader.waker.replace(waker.clone())
    }

    /// The manager's thread reads instead of the reader with this number.
    pub(super) fn read_on_the_manager(&self, instead_of: u64) {
        let mut reader = self.reader.lock();
        if reader.number != instead_of {
            return;
        }
        let before = self.become_reader(&mut reader, MANAGER);
        drop(reader);
        end_earlier(before);
        self.called.notify_one();
    }
}

/// Wakes a reader that another one has replaced. Nothing else would poll its task any more, which ends with that poll.
fn end_earlier(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Reads on the runtime of a user. It keeps neither the connection nor the manager.
pub(super) struct ReaderTask {
    shared: Weak<SharedDriver>,
    number: u64,
    /// The last waker of the task.
    waker: Option<Waker>,
}

impl ReaderTask {
    pub(super) fn new(shared: &Arc<SharedDriver>, number: u64) -> Self {
        Self {
            shared: Arc::downgrade(shared),
            number,
            waker: None,
        }
    }
}

impl Future for ReaderTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(shared) = self.shared.upgrade() else {
            return Poll::Ready(());
        };
        let (known, waker) = (self.waker.as_ref(), context.waker());
        if known.is_none_or(|known| !known.will_wake(waker)) {
            self.waker = Some(waker.clone());
            let mut reader = shared.reader.lock();
            if reader.number == self.number {
                let old = shared.wake_with(&mut reader, waker);
                drop(reader);
                drop(old);
            }
        }
        // Another reader may take over between these lines. It has woken this task then, which ends with its next poll.
        if shared.reader_number.load(SeqCst) != self.number {
            return Poll::Ready(());
        }
        shared.poll(Polling::Reads);
        if shared.has_ended.load(SeqCst) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for ReaderTask {
    /// Its runtime has ended, or the connection.
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.read_on_the_manager(self.number);
        }
    }
}
