//! The thread of a manager, on which connections, renewals, clean-ups and timers run, apart from the user's runtime.
//!
//! A handler that blocks its thread stalls every timer of its runtime, and a runtime that ends (that of a `#[tokio::test]`,
//! or of an actix worker) drops its tasks. Neither may cost a lease or leave a lock behind.

use std::{
    cell::RefCell,
    io, iter,
    sync::mpsc as std_mpsc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{runtime, sync::mpsc};

use crate::runtime::{Work, catch_panic::catch_panic, polled_once};

/// The number of pieces of work that are started together, before the connection may write. Their requests are sent in one
/// packet.
const AT_A_TIME: usize = 128;

/// How long work is delayed that no caller waits for. Most of it has its reply by then, and ends with the next poll, so the
/// thread is woken only once for everything that arrived in the meantime.
const PATIENCE: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct IoThread {
    /// Closed with the last handle, which ends the thread. Work that still runs holds a handle, so a clean-up is never cut
    /// short. The channel can be unbounded, because each caller has one piece of work in it at a time, and the callers are
    /// bounded.
    work: mpsc::UnboundedSender<Work>,
    /// Work that is started with a delay.
    patient: mpsc::UnboundedSender<Work>,
    runtime: runtime::Handle,
}

impl IoThread {
    pub(crate) fn start() -> io::Result<Self> {
        let (work, taken) = mpsc::unbounded_channel();
        let (built, result) = std_mpsc::sync_channel(1);
        let (patient, started_later) = mpsc::unbounded_channel();
        // The runtime is built and dropped on its own thread, because tokio forbids dropping a runtime inside another one.
        std::thread::Builder::new()
            .name("lock-core-io".to_owned())
            .spawn(
                move || match runtime::Builder::new_current_thread().enable_all().build() {
                    Ok(runtime) => {
                        if built.send(Ok(runtime.handle().clone())).is_ok() {
                            drop(runtime.spawn(start_later(started_later)));
                            runtime.block_on(start_received(taken));
                        }
                    }
                    // The receiver is missing only if the caller was dropped, in which case no result is needed.
                    Err(error) => drop(built.send(Err(error))),
                },
            )?;
        let runtime = result
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the I/O thread ended at its start")))?;
        Ok(Self {
            work,
            patient,
            runtime,
        })
    }

    /// Starts `work` on the thread. May be called from anywhere, even outside of a runtime.
    pub(crate) fn spawn(&self, work: Work) {
        // This cannot fail, since the thread ends only after the last handle was dropped.
        drop(self.work.send(work));
    }

    /// Starts `work` on the thread within [`PATIENCE`], together with everything that arrived in the meantime.
    pub(crate) fn spawn_patiently(&self, work: Work) {
        drop(self.patient.send(work));
    }

    /// Polls `work` once on the calling thread, inside the runtime of this thread, since the caller may have no runtime,
    /// one without timers, or one that ends before the work does. Returns the work if it is pending.
    pub(crate) fn poll_here(&self, work: Work) -> Option<Work> {
        // While the calling thread ends, its thread-local values are gone, so it cannot enter a runtime.
        let current = runtime::Handle::try_current();
        if matches!(&current, Err(error) if error.is_thread_local_destroyed()) {
            return Some(work);
        }
        let _polled_for = PolledFor::caller(current.ok());
        let _inside = self.runtime.enter();
        polled_once(work)
    }

    pub(crate) fn has_runtime(&self, id: runtime::Id) -> bool {
        self.runtime.id() == id
    }
}

thread_local! {
    /// Set while this thread polls work of a manager's thread.
    static CALLER: RefCell<Option<Caller>> = const { RefCell::new(None) };
}

/// The calling thread, as it was before it entered the runtime of a manager's thread.
#[derive(Clone)]
struct Caller {
    /// `None` if the calling thread was outside of any runtime.
    runtime: Option<runtime::Handle>,
}

/// Marks, until it is dropped, that this thread polls work of a manager's thread. Contains the previous mark.
struct PolledFor(Option<Caller>);

impl PolledFor {
    fn caller(runtime: Option<runtime::Handle>) -> Self {
        let before = CALLER.try_with(|caller| caller.replace(Some(Caller { runtime })));
        Self(before.ok().flatten())
    }
}

impl Drop for PolledFor {
    fn drop(&mut self) {
        let before = self.0.take();
        // While a thread ends, its thread-local values are gone.
        drop(CALLER.try_with(|caller| caller.replace(before)));
    }
}

/// Returns the user's runtime on the calling thread, even while it polls work of the manager's thread.
pub(crate) fn caller() -> Option<runtime::Handle> {
    let caller = CALLER.try_with(|caller| caller.borrow().clone());
    match caller.ok().flatten() {
        Some(caller) => caller.runtime,
        None => runtime::Handle::try_current().ok(),
    }
}

/// Returns `true` if the calling thread polls work of the manager's thread, where the next polls will be.
pub(crate) fn is_polled_for_another() -> bool {
    let is_polled = CALLER.try_with(|caller| caller.borrow().is_some());
    is_polled.unwrap_or(true)
}

/// Starts the delayed work in rounds. Work that is pending after one poll becomes a task like any other. Only the first
/// piece of each round wakes the thread.
async fn start_later(mut patient: mpsc::UnboundedReceiver<Work>) {
    while let Some(first) = patient.recv().await {
        tokio::time::sleep(PATIENCE).await;
        // The round is limited to what has arrived so far, so that it ends even if more work keeps arriving.
        let came = patient.len();
        let others = iter::from_fn(|| patient.try_recv().ok()).take(came);
        for mut work in iter::once(first).chain(others) {
            let mut polled = Poll::Ready(());
            catch_panic(|| {
                polled = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            });
            if polled.is_pending() {
                drop(tokio::spawn(work));
            } else {
                // The work may own the last handle of a manager, whose drop calls user code.
                catch_panic(|| drop(work));
            }
        }
    }
}

/// Starts the work in the channel, until the last handle is dropped. The runtime's own queue for tasks from other threads
/// would be slower: it wakes the thread by a system call for each task, and lets the connection write after each task.
async fn start_received(mut taken: mpsc::UnboundedReceiver<Work>) {
    let mut works = Vec::with_capacity(AT_A_TIME);
    while taken.recv_many(&mut works, AT_A_TIME).await > 0 {
        for work in works.drain(..) {
            drop(tokio::spawn(work));
        }
    }
}
