//! The reader of a shared driver: which task or thread is woken when the socket is readable. The manager's thread reads when no task
//! does, and watches the one that does.

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Weak, atomic::Ordering::SeqCst},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::runtime::Handle;

use crate::{
    backend::redis::transport::{
        shared_driver::{Driver, MANAGER, Reader, SharedDriver},
        shared_socket::{Polling, Registration},
    },
    runtime::{catch_panic::catch_panic, io_thread, mutex::may_switch},
};

/// How many runtimes without a reactor are remembered. Others are tried again.
const MOST_WITHOUT_REACTOR: usize = 8;

/// How often the watchdog looks while the connection is in use.
const LOOK: Duration = Duration::from_millis(3);

/// After so many looks that find no new poll of the driver, the connection counts as unused, and the watchdog sleeps: 50 ms. The next
/// request then wakes it. A manager that is used once a second looks a few times for each request, and not all the time.
pub(super) const MOST_IDLE_LOOKS: u32 = 16;

impl SharedDriver {
    /// Makes a task of the caller's runtime the reader, unless a task reads already. Without a runtime that has a reactor, the
    /// manager's thread reads.
    pub(crate) fn ensure_reader(self: &Arc<Self>) {
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
        if self.has_reader() {
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
        if self.reader_number.load(SeqCst) != instead_of {
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
        let waker = context.waker();
        if !matches!(&self.waker, Some(known) if known.will_wake(waker)) {
            self.waker = Some(waker.clone());
            let mut reader = shared.reader.lock();
            if shared.reader_number.load(SeqCst) == self.number {
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

impl SharedDriver {
    /// Watches the driver in a task of the manager's thread. The result is ready when the connection is over. When it is dropped, the
    /// connection ends.
    pub(crate) fn watched(self: Arc<Self>) -> Driver {
        let watching = tokio::spawn(self.clone().watch());
        let ending = Ending(self);
        Box::pin(async move {
            let _ending = ending;
            drop(watching.await);
        })
    }

    /// Reads when no task of a user does, and looks whether the one that does works.
    async fn watch(self: Arc<Self>) {
        let mut looks = Looks::default();
        // Until the connection ends.
        while !self.has_ended.load(SeqCst) {
            let is_watched = self.is_watched.load(SeqCst);
            // The thread is called when it becomes the reader.
            let is_reader = self.reader_number.load(SeqCst) == MANAGER;
            tokio::select! {
                biased;
                () = poll_fn(|context| self.read_here(context)), if is_reader => {}
                () = self.called.notified() => {}
                () = tokio::time::sleep(LOOK), if is_watched => self.look(&mut looks),
            }
        }
    }

    /// Reads, if the manager's thread is the reader. Never ready before the connection is over.
    fn read_here(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut reader = self.reader.lock();
        if self.reader_number.load(SeqCst) != MANAGER {
            return Poll::Pending;
        }
        // A reader without a waker has just become it: the current registration is that of an earlier one.
        if reader.waker.is_none() {
            match self.socket.register_here() {
                Ok(registration) => self.socket.replace(registration),
                Err(_) => self.has_ended.store(true, SeqCst),
            }
        }
        let (known, waker) = (reader.waker.as_ref(), context.waker());
        let is_known = known.is_some_and(|known| known.will_wake(waker));
        let old = (!is_known).then(|| self.wake_with(&mut reader, waker));
        drop(reader);
        drop(old);
        self.poll(Polling::Reads);
        if self.has_ended.load(SeqCst) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Polls the driver if its reader does not, and reads from then on. The polls of requests do not read, so they say nothing of the
    /// reader.
    pub(super) fn look(&self, looks: &mut Looks) {
        let (polls, reads) = (self.polls.load(SeqCst), self.reads.load(SeqCst));
        let (is_idle, is_unread) = (polls == looks.polls, reads == looks.reads);
        (looks.polls, looks.reads) = (polls, reads);
        if self.traffic.in_flight() == 0 {
            looks.idle = if is_idle { looks.idle + 1 } else { 0 };
            if looks.idle > MOST_IDLE_LOOKS {
                looks.idle = 0;
                self.is_watched.store(false, SeqCst);
                may_switch();
                // A request that began meanwhile may have seen that the connection is watched. A later one finds that it is not.
                if self.traffic.in_flight() > 0 {
                    self.is_watched.store(true, SeqCst);
                }
            }
            return;
        }
        // A request that waited for room wakes the reader alone, and so does a thread that has polled for the last time in a row.
        let is_wanted = || self.is_seen_to.load(SeqCst) || self.again.load(SeqCst);
        if is_idle && is_wanted() || is_unread && self.socket.has_work() {
            let number = self.reader_number.load(SeqCst);
            self.poll(Polling::WithoutReactor);
            if number > MANAGER {
                self.read_on_the_manager(number);
            }
            (looks.polls, looks.reads) = (self.polls.load(SeqCst), self.reads.load(SeqCst));
        }
    }
}

/// What the watchdog saw last.
#[derive(Default)]
pub(super) struct Looks {
    polls: u64,
    reads: u64,
    pub(super) idle: u32,
}

/// Drops the driver, and so ends the requests in flight. Closes the connection.
pub(super) struct Ending(pub(super) Arc<SharedDriver>);

impl Drop for Ending {
    fn drop(&mut self) {
        // A thread that keeps the driver may stand still. What the driver has taken must not leave when the thread goes on: no clean-up
        // would be sent behind it any more.
        self.0.socket.close();
        // Such a thread drops the driver when it has polled it.
        let driver = self
            .0
            .driver
            .try_lock()
            .and_then(|mut driver| driver.take());
        catch_panic(|| drop(driver));
        self.0.has_ended.store(true, SeqCst);
        self.0.called.notify_one();
        // Its task ends with the next poll. Without one it would stay in its runtime.
        self.0.wake_reader();
    }
}
