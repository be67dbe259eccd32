//! A session: one socket, and the task that owns it. Requests are sent and answered first in, first out, whichever thread
//! queues them.
//!
//! A request goes into the *inbox*. With few requests in flight, the thread that queued the request also sends it, so that no other task
//! has to run first. With many in flight, that thread only wakes the session's task, which lets all ready tasks run once, and
//! then sends the requests that they queued in shared messages. Only the task reads, and gives each request its replies.
//!
//! The task runs on the runtime of those who use the session, its *home*, so that no other thread is involved between a task
//! and its reply. A runtime may end, or not be driven by any thread, or be blocked by a handler. The watch on the manager's
//! thread therefore checks whether the task is polled while there is work for it. If not, the session moves to the manager's
//! thread, and back with the next request from a runtime. Nothing is lost or sent twice, since the socket, the bytes and the
//! requests move together.
//!
//! These invariants hold, whichever threads run:
//!
//! 1. Bytes are composed and written only under the mutex of `Io`, in the order of the inbox, so no request overtakes another
//!    one.
//! 2. A thread that finds that mutex locked wakes the task instead. A task registers its waker with the inbox before it checks
//!    the inbox. So a task always picks up a queued request, unless no task waits for its reply.
//! 3. The thread that drops a guard may block next, with the session's task in a slot of its worker from which no other worker
//!    can steal it. Therefore a release that no task waits for wakes nothing: it is sent together with the next request, or by the
//!    manager's thread within 2 ms.
//! 4. User wakers run while no mutex of this file is locked, and their panics are caught.
//!
//! Rejected: tokio's `yield_now` to run after the other tasks. A worker keeps a task that yields while it runs others, one of
//! which may block the thread.

use std::{
    fmt,
    future::poll_fn,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
};

use redis::Value;
use tokio::{runtime::Handle, sync::oneshot};

use crate::{
    backend::redis::transport::{
        CLOCK,
        command::Commands,
        connection_events::ConnectionEvents,
        exchange::{Arrival, CROWD, Compose, Exchange, MessagePart, PartReply, Request},
        incoming::Incoming,
        stream::Stream,
        traffic::{NoReply, Traffic},
    },
    runtime::{
        catch_panic::catch_panic,
        executor::spawn_detached,
        io_thread,
        mutex::{Mutex, may_switch},
    },
};

/// The number of values that are read before writing gets a turn. A server that sends without end would otherwise prevent
/// renewals from being sent.
const MOST_AT_A_TIME: usize = 256;

/// A handle of a session. The session ends on request, or with its socket.
#[derive(Clone)]
pub(crate) struct Session(Arc<Shared>);

struct Shared {
    inbox: Mutex<Inbox>,
    /// `None` once the session has ended.
    io: Mutex<Option<Io>>,
    /// The number of its home. The task of an earlier home ends. Changes under the mutex of `io`.
    home: AtomicU64,
    /// `true` if its home is a runtime of its users. Otherwise it is the manager's thread.
    is_on_user_runtime: AtomicBool,
    /// `true` if that runtime has ended.
    is_lost: AtomicBool,
    /// `true` if the watch is to check soon that the home polls the session.
    is_urgent: AtomicBool,
    traffic: Arc<Traffic>,
    events: Arc<dyn ConnectionEvents>,
}

/// The queued requests, and the task that takes them.
#[derive(Default)]
struct Inbox {
    requests: Vec<Request>,
    /// The task at the session's home, once it was polled.
    task: Option<Waker>,
    /// `true` if the task was woken since it last took requests.
    is_woken: bool,
    has_ended: bool,
}

/// The state that moves from home to home.
struct Io {
    stream: Stream,
    incoming: Incoming,
    exchange: Exchange,
    /// The number of times that the task at its home was polled.
    polls: u64,
    /// `true` if the task is letting others run first.
    is_letting_others: bool,
    /// The reason why a thread that sent a request could not write.
    failed: Option<NoReply>,
    /// `true` if more bytes may have been read than were processed.
    has_more: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    /// Starts a session on the manager's thread, which is the calling thread.
    pub(super) fn start(
        stream: Stream,
        traffic: Arc<Traffic>,
        events: Arc<dyn ConnectionEvents>,
    ) -> Self {
        let session = Self::unstarted(stream, traffic, events);
        // The stream is already registered there.
        if let Some(home) = session.0.rehome(true, |_| true) {
            spawn_detached(home);
        }
        session
    }

    fn unstarted(stream: Stream, traffic: Arc<Traffic>, events: Arc<dyn ConnectionEvents>) -> Self {
        Self(Arc::new(Shared {
            inbox: Mutex::default(),
            io: Mutex::new(Some(Io {
                stream,
                incoming: Incoming::default(),
                exchange: Exchange::default(),
                polls: 0,
                is_letting_others: false,
                failed: None,
                has_more: false,
            })),
            home: AtomicU64::new(0),
            is_on_user_runtime: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            is_urgent: AtomicBool::new(false),
            traffic,
            events,
        }))
    }

    /// Sends commands in a separate message. `None` means that the session has ended. See [`reply`](Self::reply).
    pub(super) fn alone(
        &self,
        commands: Commands,
        in_flight: usize,
    ) -> impl Future<Output = Option<Vec<Value>>> + Send + use<> {
        let (answer, reply) = oneshot::channel();
        self.reply(Request::Alone { commands, answer }, reply, in_flight)
    }

    /// Sends a request that may share a message with others. `None` means that the session has ended. See
    /// [`reply`](Self::reply).
    pub(super) fn part(
        &self,
        part: MessagePart,
        composer: Arc<dyn Compose>,
        reply: oneshot::Receiver<PartReply>,
        in_flight: usize,
    ) -> impl Future<Output = Option<PartReply>> + Send + use<> {
        self.reply(Request::Part(part, composer), reply, in_flight)
    }

    /// Queues a request at the first poll, and waits for its reply. `in_flight` is the number of requests in flight, including
    /// this one.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before its first poll, nothing is sent. If it is dropped later, the request is sent
    /// nevertheless, and requests queued afterwards arrive after it.
    fn reply<T: Send + 'static>(
        &self,
        request: Request,
        mut reply: oneshot::Receiver<T>,
        in_flight: usize,
    ) -> impl Future<Output = Option<T>> + Send + use<T> {
        let shared = self.0.clone();
        let (mut request, mut is_left) = (Some(request), false);
        poll_fn(move |context| {
            let is_new = request.is_some();
            if let Some(request) = request.take() {
                shared.queue(request);
                // A task of a runtime may be followed by one that blocks its worker. Other threads have no worker.
                is_left = io_thread::is_polled_for_another() && tokio::task::try_id().is_some();
                if !is_left {
                    shared.send(in_flight);
                }
            }
            let polled = Pin::new(&mut reply).poll(context).map(Result::ok);
            if polled.is_pending() && !is_new && mem::take(&mut is_left) {
                shared.send(1);
                shared.hurry();
            }
            polled
        })
    }

    /// Verifies that replies match their requests, after one did not arrive in time.
    pub(super) fn probe(&self) {
        self.0.queue(Request::Probe);
        self.0.send(1);
    }

    /// Ends the session, and all requests on it.
    pub(super) fn end(&self) {
        self.0.inbox.lock().has_ended = true;
        let io = self.0.io.try_lock().map(|mut io| io.take());
        match io {
            // A task is polling it, and will check again.
            None => self.0.wake_task(),
            Some(io) => {
                self.0.end(io);
                self.0.wake_task();
            }
        }
    }

    /// Returns `true` if the session runs on a runtime of its users.
    pub(crate) fn is_on_user_runtime(&self) -> bool {
        self.0.is_on_user_runtime.load(SeqCst)
    }

    /// Moves the session to this runtime, unless another thread uses it right now.
    ///
    /// # Errors
    ///
    /// Fails if the runtime has no reactor, which can only be found out by trying.
    pub(crate) fn move_to(&self, home: &Handle) -> Result<(), NoReactor> {
        self.move_home(home, false)
    }

    fn move_home(&self, home: &Handle, is_manager: bool) -> Result<(), NoReactor> {
        let mut has_reactor = true;
        let task = self.0.rehome(is_manager, |stream| {
            let _inside = home.enter();
            // This panics if the runtime has no reactor.
            let registered = catch_unwind(AssertUnwindSafe(|| stream.register_here()));
            has_reactor = registered.is_ok();
            matches!(registered, Ok(Ok(true)))
        });
        if let Some(task) = task {
            // On a runtime that is shutting down, the task is dropped at once.
            drop(home.spawn(task));
        }
        has_reactor.then_some(()).ok_or(NoReactor)
    }

    /// Moves the session to the manager's thread, which is the calling thread, if its home has ended, or has not polled it
    /// since the count of polls was `polls` although there is work. Returns the count.
    pub(super) fn take_over(&self, polls: Option<u64>) -> Option<u64> {
        let is_lost = self.0.is_lost.load(SeqCst);
        if !is_lost && !self.is_on_user_runtime() {
            return None;
        }
        let slot = self.0.io.try_lock();
        let io = slot.as_ref().and_then(|slot| slot.as_ref());
        let now = io.map(|io| io.polls);
        let is_left = now == polls
            && io.is_some_and(|io| io.has_work() || !self.0.inbox.lock().requests.is_empty());
        drop(slot);
        if is_lost || is_left {
            // The manager's runtime has a reactor.
            drop(self.move_home(&Handle::current(), true));
        }
        now
    }

    /// Returns `true` if the watch is to check soon.
    pub(super) fn is_urgent(&self) -> bool {
        self.0.is_urgent.swap(false, SeqCst)
    }
}

/// A runtime without a reactor.
#[derive(Debug)]
pub(crate) struct NoReactor;

impl Shared {
    /// Returns the task for the next home. `None` means that another thread is using the session right now, or that it cannot
    /// move.
    fn rehome(
        self: &Arc<Self>,
        is_manager: bool,
        register: impl FnOnce(&mut Stream) -> bool,
    ) -> Option<Home> {
        may_switch();
        let mut slot = self.io.try_lock()?;
        let io = slot.as_mut()?;
        if !register(&mut io.stream) {
            return None;
        }
        let (number, earlier) = (self.home.load(SeqCst) + 1, self.inbox.lock().task.take());
        self.home.store(number, SeqCst);
        self.is_on_user_runtime.store(!is_manager, SeqCst);
        self.is_lost.store(false, SeqCst);
        drop(slot);
        // Lets the task of the earlier home end.
        if let Some(earlier) = earlier {
            earlier.wake();
        }
        Some(Home {
            shared: self.clone(),
            number,
            is_manager,
        })
    }

    fn queue(&self, request: Request) {
        let mut inbox = self.inbox.lock();
        let refused = if inbox.has_ended {
            Some(request)
        } else {
            inbox.requests.push(request);
            None
        };
        drop(inbox);
        // This drops the sender of a channel whose receiver has not been polled yet.
        drop(refused);
    }

    /// Sends all queued requests, or makes the session's task do so.
    fn send(&self, in_flight: usize) {
        if in_flight > CROWD || !self.send_here() {
            self.wake();
        }
    }

    /// Sends all queued requests on this thread. Returns `false` if the session's task has to.
    fn send_here(&self) -> bool {
        may_switch();
        let Some(mut slot) = self.io.try_lock() else {
            return false;
        };
        let Some(io) = &mut *slot else {
            return true;
        };
        let mut inbox = self.inbox.lock();
        if inbox.has_ended {
            drop(inbox);
            let io = slot.take();
            drop(slot);
            self.end(io);
            return true;
        }
        let Some(task) = inbox.task.clone() else {
            return false;
        };
        let requests = inbox.take();
        drop(inbox);
        io.exchange.accept(requests);
        let written = io.write(&mut Context::from_waker(&task));
        if let Err(why) = written {
            io.failed = Some(why);
            return false;
        }
        true
    }

    /// Wakes the session's task for the queued requests.
    fn wake(&self) {
        let mut inbox = self.inbox.lock();
        if mem::replace(&mut inbox.is_woken, true) {
            return;
        }
        let task = inbox.task.clone();
        drop(inbox);
        if let Some(task) = task {
            task.wake();
        }
    }

    fn wake_task(&self) {
        let task = self.inbox.lock().task.clone();
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Makes the watch check soon whether the session's task is polled.
    fn hurry(&self) {
        if self.is_on_user_runtime.load(SeqCst) {
            self.is_urgent.store(true, SeqCst);
            self.traffic.changed.notify_one();
        }
    }

    /// Drops the remaining state. Called without a mutex locked.
    fn end(&self, io: Option<Io>) {
        let mut inbox = self.inbox.lock();
        inbox.has_ended = true;
        let requests = mem::take(&mut inbox.requests);
        drop(inbox);
        self.traffic
            .end(NoReply::Broken("the connection was given up".into()));
        for request in requests {
            catch_panic(|| drop(request));
        }
        if let Some(io) = io {
            io.exchange.end();
        }
    }
}

impl Inbox {
    fn take(&mut self) -> Vec<Request> {
        self.is_woken = false;
        mem::take(&mut self.requests)
    }
}

impl Io {
    /// Returns `true` if the task at its home has work to do.
    fn has_work(&self) -> bool {
        self.failed.is_some()
            || self.has_more
            || self.exchange.has_unsent()
            || self.stream.is_readable()
    }

    /// Writes as many bytes as the stream accepts.
    fn write(&mut self, context: &mut Context<'_>) -> Result<(), NoReply> {
        loop {
            let output = self.exchange.output(CLOCK.now());
            if output.is_empty() {
                return match self.stream.pinned().poll_flush(context) {
                    Poll::Ready(Err(error)) => Err(NoReply::of(error)),
                    _ => Ok(()),
                };
            }
            match self.stream.pinned().poll_write(context, output) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => {
                    return Err(NoReply::Broken("the server accepts no more bytes".into()));
                }
                Poll::Ready(Ok(count)) => self.exchange.note_written(count),
                Poll::Ready(Err(error)) => return Err(NoReply::of(error)),
            }
        }
    }

    /// Sends, and reads the values that have arrived. Returns whether there may be more.
    fn poll(
        &mut self,
        shared: &Shared,
        context: &mut Context<'_>,
        arrivals: &mut Vec<Arrival>,
    ) -> Result<bool, NoReply> {
        if let Some(why) = self.failed.take() {
            return Err(why);
        }
        self.accept(shared, context)?;
        self.write(context)?;
        for _ in 0..MOST_AT_A_TIME {
            self.has_more = false;
            let Poll::Ready(value) = self.incoming.poll_value(self.stream.pinned(), context) else {
                return Ok(false);
            };
            let now = CLOCK.now();
            let before = self.exchange.in_flight();
            let value = value?;
            if !matches!(value, Value::Push { .. }) {
                shared.traffic.note_reply(now);
            }
            let probed = self.exchange.read(value, now, arrivals)?;
            if let Some(took) = probed {
                shared.traffic.note_late_round_trip(took);
            }
            let answered = before - self.exchange.in_flight();
            if answered > 0 {
                shared.traffic.note_answered(answered);
            }
        }
        self.has_more = true;
        Ok(true)
    }

    /// Takes the queued requests. With many in flight, other tasks run first, so that they queue their requests, too.
    fn accept(&mut self, shared: &Shared, context: &Context<'_>) -> Result<(), NoReply> {
        let mut inbox = shared.inbox.lock();
        if inbox.has_ended {
            return Err(NoReply::Broken("the connection was given up".into()));
        }
        if !matches!(&inbox.task, Some(known) if known.will_wake(context.waker())) {
            inbox.task = Some(context.waker().clone());
        }
        let count = inbox.requests.len();
        let is_crowd = count > 0 && self.exchange.in_flight() + count >= CROWD;
        if is_crowd && !mem::replace(&mut self.is_letting_others, true) {
            drop(inbox);
            context.waker().wake_by_ref();
            return Ok(());
        }
        self.is_letting_others = false;
        let requests = inbox.take();
        drop(inbox);
        self.exchange.accept(requests);
        Ok(())
    }
}

/// The task of a session at one home.
struct Home {
    shared: Arc<Shared>,
    number: u64,
    is_manager: bool,
}

impl Future for Home {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (mut arrivals, shared) = (Vec::new(), &self.shared);
        let mut slot = shared.io.lock();
        let Some(io) = slot.as_mut().filter(|_| self.is_current()) else {
            return Poll::Ready(());
        };
        io.polls += 1;
        let polled = io.poll(shared, context, &mut arrivals);
        let ended = polled.as_ref().is_err().then(|| slot.take());
        drop(slot);
        for arrival in arrivals {
            match arrival {
                Arrival::Answers(message) => message.answer(),
                Arrival::Push(message) => shared.events.pushed(&message),
            }
        }
        match polled {
            Ok(false) => Poll::Pending,
            Ok(true) => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Err(why) => {
                shared.traffic.end(why);
                shared.end(ended.flatten());
                Poll::Ready(())
            }
        }
    }
}

impl Home {
    fn is_current(&self) -> bool {
        self.shared.home.load(SeqCst) == self.number
    }
}

impl Drop for Home {
    /// Handles the end of the task: the session has ended or moved, or the runtime has ended. If the runtime has ended, queued
    /// requests are sent at once, since the process may be about to end, too.
    fn drop(&mut self) {
        if !self.is_current() {
            return;
        }
        let mut slot = self.shared.io.try_lock();
        // The session may have moved in the meantime.
        if !self.is_current() {
            return;
        }
        let io = slot.as_mut().and_then(|slot| slot.as_mut());
        if self.is_manager {
            let io = slot.as_mut().and_then(|slot| slot.take());
            drop(slot);
            return self.shared.end(io);
        }
        // If the mutex is locked, another thread is sending right now.
        if let Some(io) = io {
            let mut inbox = self.shared.inbox.lock();
            inbox.task = None;
            io.exchange.accept(inbox.take());
            drop(inbox);
            if let Err(why) = io.write(&mut Context::from_waker(Waker::noop())) {
                io.failed = Some(why);
            }
        }
        self.shared.is_on_user_runtime.store(false, SeqCst);
        self.shared.is_lost.store(true, SeqCst);
        drop(slot);
        self.shared.traffic.changed.notify_one();
    }
}

#[cfg(test)]
mod model;
