//! A shared driver under the interleavings of threads: a server, tasks that send, alone and in messages with others, and readers that
//! replace each other.
//!
//! The socket forgets its waker once it has taken over another registration. The driver writes what is queued, and reads what has come.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    io, mem,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

use crate::{
    backend::redis::transport::{
        CLOCK,
        shared_driver::{
            MANAGER, SharedDriver,
            gathering::{Change, Compose, MessagePart, PartReply, Queueing},
            reader::{Ending, Looks, MOST_IDLE_LOOKS, ReaderTask},
        },
        shared_socket::{Polling, Registration, Registrations},
    },
    runtime::mutex::{
        Mutex,
        interleaved::{explore, point},
    },
};

const SCHEDULES: usize = 1500;

/// How many requests each task sends.
const REQUESTS: usize = 2;

/// The reply to a message, once it has come, and a task that waits for it.
#[derive(Default)]
struct Reply {
    has_come: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Reply {
    fn come(&self) {
        self.has_come.store(true, SeqCst);
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// As the future of the crate: the waker first, then the look.
    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        *self.waker.lock() = Some(context.waker().clone());
        if self.has_come.load(SeqCst) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// What the driver, the server and the tasks share.
#[derive(Default)]
struct Wire {
    queue: Mutex<VecDeque<Arc<Reply>>>,
    at_the_server: Mutex<VecDeque<Arc<Reply>>>,
    replies: Mutex<VecDeque<Arc<Reply>>>,
    /// The driver's waker, as the queue of requests knows it.
    of_the_queue: Mutex<Option<Waker>>,
    /// The reader's waker, as the current registration knows it.
    of_the_socket: Mutex<Option<Waker>>,
    /// Whether there is another registration, and the waker of another reader, for the next poll.
    change: Mutex<(bool, Option<Waker>)>,
    reader: Mutex<Option<Waker>>,
    /// How many requests have their replies.
    answered: AtomicUsize,
    polling: Mutex<Option<Polling>>,
}

impl Wire {
    /// Puts a message into the queue.
    fn queued(&self) -> Arc<Reply> {
        let reply = Arc::<Reply>::default();
        self.queue.lock().push_back(reply.clone());
        let waker = self.of_the_queue.lock().take();
        // Without a point at which another thread may run.
        let _queueing = Queueing::begin();
        if let Some(waker) = waker {
            waker.wake();
        }
        reply
    }

    /// Reads all there is, and writes one request. If there are more, the driver wakes itself.
    fn drive(&self, context: &mut Context<'_>) {
        *self.of_the_queue.lock() = Some(context.waker().clone());
        let queued = self.queue.lock().pop_front();
        self.at_the_server.lock().extend(queued);
        if !self.queue.lock().is_empty() {
            context.waker().wake_by_ref();
        }
        if *self.polling.lock() == Some(Polling::Writes) {
            return;
        }
        let (is_registered_anew, reader) = std::mem::take(&mut *self.change.lock());
        if is_registered_anew {
            drop(self.of_the_socket.lock().take());
        }
        if reader.is_some() {
            *self.reader.lock() = reader;
        }
        let reader = self.reader.lock().clone();
        // As a reactor does: the waker first, then the look.
        *self.of_the_socket.lock() = Some(reader.unwrap_or_else(|| context.waker().clone()));
        for reply in self.replies.lock().drain(..) {
            reply.come();
        }
    }

    /// The server replies to the next request.
    fn serve(&self) {
        let Some(request) = self.at_the_server.lock().pop_front() else {
            return;
        };
        self.replies.lock().push_back(request);
        let waker = self.of_the_socket.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Registrations for Wire {
    fn begin(&self, polling: Polling) {
        *self.polling.lock() = Some(polling);
    }

    fn has_put_off_reads(&self) -> bool {
        false
    }

    fn register_here(&self) -> io::Result<Registration> {
        Ok(Box::new(tokio::io::empty()))
    }

    fn replace(&self, _: Registration) {
        self.change.lock().0 = true;
    }

    fn wake(&self, reader: Waker) {
        self.change.lock().1 = Some(reader);
    }

    fn has_work(&self) -> bool {
        !self.replies.lock().is_empty()
    }

    fn close(&self) {}
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// What polls the driver so that a request leaves.
#[derive(Clone, Copy)]
enum SeesToIt {
    TheRequest,
    OneOfACrowd,
    TheReader,
}

#[derive(Clone)]
struct Model {
    wire: Arc<Wire>,
    shared: Arc<SharedDriver>,
}

impl Model {
    fn new() -> Self {
        let wire = Arc::<Wire>::default();
        let of_driver = wire.clone();
        let driver = poll_fn(move |context| {
            of_driver.drive(context);
            Poll::Pending
        });
        let shared = SharedDriver::new(Box::pin(driver), wire.clone(), Arc::default());
        Self { wire, shared }
    }

    /// Sends a request that leaves alone, and waits for its reply.
    fn request(&self, sees_to_it: SeesToIt) {
        self.shared.gathering.leave();
        let reply = self.wire.queued();
        self.see_to(sees_to_it, Waker::noop());
        while !reply.has_come.load(SeqCst) {
            point();
        }
        self.wire.answered.fetch_add(1, SeqCst);
    }

    /// The same with a request that joins a message.
    fn gathered(&self, sees_to_it: SeesToIt) {
        let wire = self.wire.clone();
        let compose = || -> Compose {
            Box::new(move |parts| {
                let mut reply = None;
                Box::pin(poll_fn(move |context| {
                    let reply = reply.get_or_insert_with(|| wire.queued());
                    let replies = || Ok(vec![PartReply::default(); parts.len()]);
                    reply.poll(context).map(|()| replies())
                }))
            })
        };
        let part = MessagePart {
            subject: Arc::new("k".to_owned()),
            change: Change::Delete,
        };
        let mut reply = pin!(self.shared.gathering.join(part, compose));
        let is_woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(is_woken.clone());
        let mut context = Context::from_waker(&waker);
        {
            let _queueing = Queueing::begin();
            assert!(reply.as_mut().poll(&mut context).is_pending());
        }
        self.see_to(sees_to_it, &waker);
        while !is_woken.0.swap(false, SeqCst) || reply.as_mut().poll(&mut context).is_pending() {
            point();
        }
        self.wire.answered.fetch_add(1, SeqCst);
    }

    fn see_to(&self, sees_to_it: SeesToIt, waker: &Waker) {
        point();
        match sees_to_it {
            SeesToIt::TheRequest => self.shared.poll(Polling::Writes),
            SeesToIt::OneOfACrowd => {
                // With this many in flight, no request is the last of its part.
                let seen_to = self.shared.see_to(usize::MAX, waker);
                point();
                drop(seen_to);
            }
            SeesToIt::TheReader => self.shared.leave_to_the_reader(),
        }
    }

    /// Reads until another reader comes, or the connection ends.
    fn read(&self, number: u64) {
        let mut reader = self.shared.reader.lock();
        if self.shared.reader_number.load(SeqCst) > number {
            return;
        }
        let registration = self.wire.register_here().expect("a registration");
        let earlier = self.shared.become_reader(&mut reader, number);
        self.wire.replace(registration);
        drop(reader);
        if let Some(earlier) = earlier {
            earlier.wake();
        }
        let mut task = ReaderTask::new(&self.shared, number);
        // A task of the explorer is woken whenever it yields, so it would be polled without a cause.
        let is_woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(is_woken.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            if is_woken.0.swap(false, SeqCst) && Pin::new(&mut task).poll(&mut context).is_ready() {
                return;
            }
            point();
        }
    }

    fn end(&self) {
        self.shared.has_ended.store(true, SeqCst);
        drop(Ending(self.shared.clone()));
        self.shared.wake_reader();
    }
}

/// `early` readers have begun before the tasks. As many as `late` ones replace them at any time.
fn explored(early: u64, late: u64, tasks: &'static [fn(&Model)]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime");
    let _inside = runtime.enter();
    explore(SCHEDULES, move || {
        let model = Model::new();
        let is_over = Arc::new(AtomicBool::new(false));
        let reader = |number| {
            let model = model.clone();
            shuttle::thread::spawn(move || model.read(MANAGER + number))
        };
        let mut threads: Vec<_> = (1..=early).map(reader).collect();
        while model.shared.reader_number.load(SeqCst) < MANAGER + early {
            point();
        }
        threads.extend((early + 1..=early + late).map(reader));
        threads.push(shuttle::thread::spawn({
            let (wire, is_over) = (model.wire.clone(), is_over.clone());
            move || {
                while !is_over.load(SeqCst) {
                    wire.serve();
                    point();
                }
            }
        }));
        let spawn = |task: &'static fn(&Model)| {
            let model = model.clone();
            shuttle::thread::spawn(move || task(&model))
        };
        let tasks: Vec<_> = tasks.iter().map(spawn).collect();
        let count = tasks.len() * REQUESTS;
        for task in tasks {
            task.join().expect("no panic");
        }
        is_over.store(true, SeqCst);
        model.end();
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert_eq!(model.wire.answered.load(SeqCst), count, "one reply each");
    });
}

const ALONE: fn(&Model) = |model| (0..REQUESTS).for_each(|_| model.request(SeesToIt::TheRequest));
const IN_A_CROWD: fn(&Model) =
    |model| (0..REQUESTS).for_each(|_| model.request(SeesToIt::OneOfACrowd));
const IN_THE_BACKGROUND: fn(&Model) =
    |model| (0..REQUESTS).for_each(|_| model.request(SeesToIt::TheReader));

const IN_A_MESSAGE: fn(&Model) =
    |model| (0..REQUESTS).for_each(|_| model.gathered(SeesToIt::OneOfACrowd));
const IN_A_MESSAGE_IN_THE_BACKGROUND: fn(&Model) =
    |model| (0..REQUESTS).for_each(|_| model.gathered(SeesToIt::TheReader));

#[test]
fn each_request_has_its_reply_whichever_task_reads() {
    explored(1, 0, &[ALONE, ALONE]);
    explored(1, 1, &[ALONE]);
    explored(1, 2, &[ALONE, ALONE]);
}

#[test]
fn a_request_that_another_one_sees_to_is_not_forgotten() {
    explored(1, 0, &[IN_A_CROWD, IN_A_CROWD]);
    explored(1, 1, &[IN_A_CROWD, IN_A_CROWD, ALONE]);
}

#[test]
fn a_request_that_is_left_to_the_reader_is_not_forgotten() {
    explored(1, 0, &[IN_THE_BACKGROUND, ALONE]);
    explored(1, 2, &[IN_THE_BACKGROUND, IN_A_CROWD]);
}

#[test]
fn a_request_in_a_message_is_not_forgotten() {
    explored(1, 0, &[IN_A_MESSAGE, IN_A_MESSAGE]);
    explored(1, 1, &[IN_A_MESSAGE, IN_A_MESSAGE, ALONE]);
    explored(1, 1, &[IN_A_MESSAGE_IN_THE_BACKGROUND, IN_A_MESSAGE]);
}

/// A request begins while the watchdog goes to sleep.
#[test]
fn a_connection_with_a_request_in_flight_is_watched() {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime");
    let _inside = runtime.enter();
    explore(SCHEDULES, || {
        let Model { shared, .. } = Model::new();
        shared.reader_number.store(MANAGER + 1, SeqCst);
        let watchdog = shuttle::thread::spawn({
            let shared = shared.clone();
            move || {
                let mut looks = Looks::default();
                looks.idle = MOST_IDLE_LOOKS;
                point();
                shared.look(&mut looks);
            }
        });
        let request = shuttle::thread::spawn({
            let shared = shared.clone();
            move || {
                // Until the end.
                mem::forget(shared.traffic.begin(CLOCK.now()));
                point();
                shared.ensure_reader();
            }
        });
        for thread in [watchdog, request] {
            thread.join().expect("no panic");
        }
        assert!(shared.is_watched.load(SeqCst));
    });
}
