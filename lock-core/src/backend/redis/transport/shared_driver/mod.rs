//! The driver of a request connection, which no thread owns: a request writes by itself, and a task of the user's runtime reads.
//!
//! On a connection of the manager's thread, each request wakes that thread, and each reply wakes it again before it wakes the user's
//! task. Here both happen on the thread of the user. The driver of the crate `redis` is behind a mutex, which is never waited for.
//!
//! - The *reader* is a task on the runtime of the user, made by the first request from there. It is woken when the socket is
//!   readable. When its runtime ends, or does not run, the manager's thread reads, until a request comes from a live runtime.
//! - A *request* puts its bytes into the queue, and then polls the driver, so that they leave. It does not read: it would wake other
//!   tasks on the worker of its runtime, which its own task may block next. In a crowd, requests that are made together leave
//!   together. They do so when half of those in flight are queued, or when all tasks that are ready have run. Those for free locks are
//!   one message then (`gathering.rs`).
//! - The *watchdog*, on the manager's thread, looks every few milliseconds while the connection is in use. It finds a poll that was
//!   left out, or replies that were not read. Then the thread polls the driver, and reads from then on.
//!
//! What holds:
//!
//! 1. Which task reads, its registration with a reactor and its waker change under one mutex. The stream takes them over with its next
//!    poll. A new reader polls the driver before it sleeps, and so its reactor knows what is waited for.
//! 2. A thread that finds the driver's mutex locked sets `again` first, and goes. The thread that has the mutex looks at `again`
//!    after it has unlocked it. So between the two looks no request is forgotten.
//! 3. The request that is queued first since the last poll sees to the next one, also if its future is dropped in between.
//! 4. The only mutex of a connection under which wakers of users run is the driver's. A task that is dropped there may send a request:
//!    the driver's mutex is locked then, and `again` is seen.
//! 5. The driver is polled outside tokio's budget, which would make it wake itself. Its reads, and the rounds of one thread, are
//!    bounded: then the reader is woken for the rest.
//! 6. A panic of a user's waker ends neither the connection nor the thread's flags.
//! 7. The error of a reactor that shuts down does not end the connection (`shared_socket.rs`).

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

use tokio::{
    runtime::{Handle, Id},
    sync::Notify,
    task::{
        coop::{Unconstrained, unconstrained},
        yield_now,
    },
};

use crate::{
    backend::redis::transport::{
        shared_driver::gathering::{CROWD, Gathering, Queueing},
        shared_socket::{Polling, Registrations},
        traffic::Traffic,
    },
    runtime::{
        catch_panic::catch_panic,
        io_thread,
        mutex::{Mutex, may_switch, this_thread},
    },
};

pub(crate) mod gathering;
#[cfg(test)]
mod model;
mod reader;
#[cfg(all(test, unix))]
mod tests;

/// How often one thread polls the driver in a row for requests of other threads.
const MOST_ROUNDS: u32 = 16;

/// Requests leave when this part of those in flight is queued, a half: the server works on them while the rest is made.
const PART: usize = 2;

/// The number of the reader if the manager's thread reads. Each task that reads has a larger one.
const MANAGER: u64 = 1;

#[derive(Default)]
struct Reader {
    waker: Option<Waker>,
    /// Runtimes that are known to have no reactor, the newest first.
    without_reactor: Vec<Id>,
}

/// A driver ends after more than this many panics in a row. Even a broken executor has fewer such wakers.
const MOST_PANICS: u32 = 100;

/// The future of the crate `redis` that reads and writes. It ends with its connection.
pub(crate) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A driver that goes on with the next reply if a waker panics: it wakes tasks of users' executors. After more than `MOST_PANICS`
/// panics in a row, the connection ends.
pub(super) struct Shielded {
    driver: Driver,
    panics: u32,
}

impl Shielded {
    pub(super) fn new(driver: Driver) -> Self {
        Self { driver, panics: 0 }
    }
}

impl Future for Shielded {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut polled = None;
        catch_panic(|| polled = Some(self.driver.as_mut().poll(context)));
        if let Some(polled) = polled {
            self.panics = 0;
            return polled;
        }
        self.panics += 1;
        if self.panics > MOST_PANICS {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

pub(crate) struct SharedDriver {
    /// `None` once the connection is over.
    driver: Mutex<Option<Unconstrained<Shielded>>>,
    /// The thread that has that mutex and polls the driver; else zero.
    polled_by: AtomicUsize,
    waker: Waker,
    /// The driver is to be polled once more by the thread that polls it.
    again: AtomicBool,
    /// The driver is to read, which a request does not do.
    reads_again: AtomicBool,
    /// Requests are queued, and one of them sees to the poll.
    is_seen_to: AtomicBool,
    /// How many requests were queued since the last poll.
    queued: AtomicUsize,
    /// How often the driver was polled.
    polls: AtomicU64,
    /// How often it was polled to read.
    reads: AtomicU64,
    /// The message that requests join.
    pub(super) gathering: Gathering,
    has_ended: AtomicBool,
    reader: Mutex<Reader>,
    /// The number of the reader, which changes under that mutex. Zero before the first one.
    reader_number: AtomicU64,
    last_number: AtomicU64,
    socket: Arc<dyn Registrations>,
    traffic: Arc<Traffic>,
    /// The runtime of the manager's thread.
    manager: Id,
    /// Wakes the task of the manager's thread: it is to read, to watch, or to notice the end.
    called: Notify,
    is_watched: AtomicBool,
}

impl std::fmt::Debug for SharedDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedDriver").finish_non_exhaustive()
    }
}

/// The driver's only waker. It holds no strong reference: the driver holds the waker.
struct DriverWaker(Weak<SharedDriver>);

impl Wake for DriverWaker {
    fn wake(self: Arc<Self>) {
        if Queueing::is_on_this_thread() {
            return;
        }
        let Some(shared) = self.0.upgrade() else {
            return;
        };
        shared.again.store(true, SeqCst);
        may_switch();
        if shared.polled_by.load(SeqCst) != this_thread() {
            shared.wake_reader();
        }
    }
}

impl SharedDriver {
    /// Must be called on the manager's thread.
    pub(crate) fn new(
        driver: Driver,
        socket: Arc<dyn Registrations>,
        traffic: Arc<Traffic>,
    ) -> Arc<Self> {
        let driver = unconstrained(Shielded::new(driver));
        Arc::new_cyclic(|weak| Self {
            driver: Mutex::new(Some(driver)),
            polled_by: AtomicUsize::new(0),
            waker: Waker::from(Arc::new(DriverWaker(weak.clone()))),
            again: AtomicBool::new(false),
            reads_again: AtomicBool::new(false),
            is_seen_to: AtomicBool::new(false),
            queued: AtomicUsize::new(0),
            polls: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            gathering: Gathering::default(),
            has_ended: AtomicBool::new(false),
            reader: Mutex::default(),
            reader_number: AtomicU64::new(0),
            last_number: AtomicU64::new(MANAGER),
            socket,
            traffic,
            manager: Handle::current().id(),
            called: Notify::new(),
            is_watched: AtomicBool::new(false),
        })
    }

    /// Whether a task of a user's runtime reads.
    pub(crate) fn has_reader(&self) -> bool {
        self.reader_number.load(SeqCst) > MANAGER
    }

    /// Polls the driver on this thread. If another thread polls it, that one does so once more, and has the reader read.
    fn poll(&self, polling: Polling) {
        let reads = !matches!(polling, Polling::Writes);
        if reads {
            self.reads_again.store(true, SeqCst);
        }
        self.again.store(true, SeqCst);
        let mut rounds = 0;
        // Bounded by `MOST_ROUNDS`.
        while self.again.load(SeqCst) {
            let Some(mut driver) = self.driver.try_lock() else {
                return;
            };
            self.polled_by.store(this_thread(), SeqCst);
            let over = self.poll_locked(&mut driver, polling, &mut rounds);
            let has_put_off_reads = reads && self.socket.has_put_off_reads();
            self.polled_by.store(0, SeqCst);
            may_switch();
            drop(driver);
            may_switch();
            if over.is_some() {
                // Wakes the requests in flight, so not under the mutex.
                catch_panic(|| drop(over));
                self.has_ended.store(true, SeqCst);
                self.called.notify_one();
                return;
            }
            // A reader that found the mutex locked has gone.
            let is_to_read = !reads && self.reads_again.load(SeqCst);
            if has_put_off_reads || rounds >= MOST_ROUNDS {
                self.wake_reader_after(polling);
                return;
            }
            if is_to_read {
                self.wake_reader();
            }
        }
    }

    /// Returns the driver if the connection is over.
    fn poll_locked(
        &self,
        driver: &mut Option<Unconstrained<Shielded>>,
        polling: Polling,
        rounds: &mut u32,
    ) -> Option<Unconstrained<Shielded>> {
        let mut context = Context::from_waker(&self.waker);
        self.socket.begin(polling);
        while *rounds < MOST_ROUNDS && self.again.swap(false, SeqCst) {
            let polled_driver = driver.as_mut()?;
            *rounds += 1;
            if !matches!(polling, Polling::Writes) {
                self.reads_again.store(false, SeqCst);
                self.reads.fetch_add(1, SeqCst);
            }
            // In this order: a request that then sets `is_seen_to` has noted this poll, and makes another one.
            self.polls.fetch_add(1, SeqCst);
            may_switch();
            self.is_seen_to.store(false, SeqCst);
            self.queued.store(0, SeqCst);
            // Behind the lines above: a request that joins from now on sees to another poll.
            self.gathering.leave();
            if Pin::new(polled_driver).poll(&mut context).is_ready() {
                return driver.take();
            }
        }
        None
    }

    /// A release in the background is queued. It leaves with the next request of its task, which usually follows. Else the reader sends
    /// it, when all tasks that are ready have run. If the reader does not run, the watchdog sees `again`.
    fn leave_to_the_reader(&self) {
        self.again.store(true, SeqCst);
        may_switch();
        self.wake_reader_after(Polling::Reads);
    }

    /// Wakes the reader for what is left. If this is its runtime, that looks at its timers and sockets first. It does so only once in
    /// 61 turns of tasks that wake themselves.
    fn wake_reader_after(&self, polling: Polling) {
        let waker = self.reader.lock().waker.clone();
        let Some(waker) = waker.filter(|_| polling == Polling::Reads) else {
            return self.wake_reader();
        };
        // Ready only if it has been polled before.
        let _pending = pin!(yield_now()).poll(&mut Context::from_waker(&waker));
    }

    /// Has the driver polled behind a request that is queued, of which `waker` is the task's. `in_flight` counts it. `Some`: the task sees to
    /// it with its next poll, also for those that are queued until then.
    pub(crate) fn see_to(&self, in_flight: usize, waker: &Waker) -> Option<SeesTo<'_>> {
        let queued = self.queued.fetch_add(1, SeqCst) + 1;
        if io_thread::is_polled_for_another() {
            self.leave_to_the_reader();
        } else if in_flight <= CROWD.start || queued >= in_flight.div_ceil(PART) {
            self.poll(Polling::Writes);
        } else if !self.is_seen_to.swap(true, SeqCst) {
            may_switch();
            let seen_to = SeesTo {
                shared: self,
                since: self.polls.load(SeqCst),
            };
            // The task runs behind all tasks that are ready, which may send, too. Rejected: `yield_now` of tokio. A worker keeps a
            // task that yields for itself, and first runs others. If one of these blocks the thread, the task waits for it.
            catch_panic(|| waker.wake_by_ref());
            return Some(seen_to);
        }
        None
    }

    fn wake_reader(&self) {
        // The waker is one of tokio's own, which runs no code of the user when it is cloned.
        let waker = self.reader.lock().waker.clone();
        match waker {
            Some(waker) => waker.wake(),
            None => self.called.notify_one(),
        }
    }
}

/// The request that polls the driver for those that are queued, also if its future is dropped.
pub(crate) struct SeesTo<'a> {
    shared: &'a SharedDriver,
    /// How often the driver had been polled. Read after `is_seen_to` was set, which a poll clears after it is counted. So a poll in
    /// between is repeated, and none is missed.
    since: u64,
}

impl Drop for SeesTo<'_> {
    /// After a later poll, another request sees to those that have been queued since. Else each request of a crowd would leave alone.
    fn drop(&mut self) {
        if self.shared.polls.load(SeqCst) == self.since {
            self.shared.poll(Polling::Writes);
        }
    }
}
