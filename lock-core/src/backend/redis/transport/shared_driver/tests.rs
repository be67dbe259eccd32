//! A shared driver on a real socket: a reader that does not run, a thread that keeps the driver, and a runtime without a reactor.

use std::{
    future::{pending, poll_fn},
    io::{self, Read, Write},
    os::unix::net::UnixStream as StdUnixStream,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    task::{Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use tokio::{
    net::UnixStream,
    runtime::{Builder, Runtime},
};

use crate::backend::redis::transport::{
    CLOCK,
    shared_driver::{Driver, MANAGER, PART, SharedDriver, reader::Ending},
    shared_socket::{Polling, Registration, Registrations, SharedSocket, Socket},
    traffic::Traffic,
};

mod shared_requests;

/// Far longer than any step here takes.
const HANG: Duration = Duration::from_secs(30);

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < HANG, "not in time: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A socket that several runtimes may read, registered in the current one, and its other end.
fn sockets() -> (SharedSocket, Arc<dyn Registrations>, StdUnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let ours = ours.into_std().expect("a socket");
    let socket = SharedSocket::new(Socket::Unix(ours));
    let registrations = socket.registrations();
    let here = registrations.register_here().expect("a registration");
    registrations.replace(here);
    let theirs = theirs.into_std().expect("a socket");
    theirs.set_nonblocking(false).expect("a socket");
    theirs.set_read_timeout(Some(HANG)).expect("a socket");
    (socket, registrations, theirs)
}

#[test]
fn a_unix_socket_has_work_only_when_there_is_something_to_read() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let (_socket, registrations, mut server) = sockets();
    assert!(!registrations.has_work());
    server.write_all(b"+OK\r\n").expect("it is open");
    assert!(registrations.has_work());
    let (_socket, registrations, server) = sockets();
    drop(server);
    assert!(registrations.has_work(), "its end is to be read");
}

/// A shared driver whose manager's thread runs, and whose reader is a task of a runtime that does not run. A request is in flight. Returns
/// the number of polls, too.
fn with_a_reader_that_does_not_run() -> (Arc<SharedDriver>, StdUnixStream, Arc<AtomicU64>, Runtime)
{
    let polls = Arc::new(AtomicU64::new(0));
    let (made, result) = mpsc::channel();
    let counted = polls.clone();
    let of_the_manager = async move {
        let (_socket, registrations, server) = sockets();
        let driver: Driver = Box::pin(poll_fn(move |_| {
            counted.fetch_add(1, SeqCst);
            Poll::Pending
        }));
        let traffic = Arc::<Traffic>::default();
        let _counted = traffic.begin(CLOCK.now());
        let shared = SharedDriver::new(driver, registrations, traffic.clone());
        made.send((shared.clone(), server)).expect("the test waits");
        shared.watched().await;
    };
    thread::spawn(move || runtime().block_on(of_the_manager));
    let (shared, server) = result.recv().expect("it is there");
    let stands_still = runtime();
    {
        let _inside = stands_still.enter();
        shared.ensure_reader();
    }
    assert!(shared.reader_number.load(SeqCst) > MANAGER);
    (shared, server, polls, stands_still)
}

/// The waker is called when a request that waited for room is queued. Its reader, whose runtime does not run, would not notice.
#[test]
fn the_watchdog_polls_a_driver_that_was_woken_while_its_reader_does_not_run() {
    let (shared, _server, polls, _stands_still) = with_a_reader_that_does_not_run();
    let before = polls.load(SeqCst);
    shared.waker.wake_by_ref();
    eventually("it is polled", || polls.load(SeqCst) > before);
}

/// The requests of another runtime poll the driver all the time, to write.
#[test]
fn the_watchdog_reads_while_requests_write_and_the_reader_does_not_run() {
    let (shared, mut server, polls, _stands_still) = with_a_reader_that_does_not_run();
    server.write_all(b"+OK\r\n").expect("it is open");
    thread::scope(|scope| {
        scope.spawn(|| {
            let started = Instant::now();
            while shared.reads.load(SeqCst) == 0 && started.elapsed() < HANG {
                shared.poll(Polling::Writes);
                thread::yield_now();
            }
        });
        eventually("it is read", || shared.reads.load(SeqCst) > 0);
    });
    eventually("the manager's thread reads", || !shared.has_reader());
    assert!(polls.load(SeqCst) > 0);
}

/// A thread is stopped while it has the driver. What the driver has taken must not leave when the thread goes on.
#[test]
fn a_connection_that_ends_while_a_thread_has_its_driver_is_closed() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let (socket, registrations, mut server) = sockets();
    let driver: Driver = Box::pin(async move {
        let _socket = socket;
        pending::<()>().await;
    });
    let shared = SharedDriver::new(driver, registrations, Arc::default());
    let polls = shared.driver.lock();
    drop(Ending(shared.clone()));
    let read = server.read(&mut [0]).expect("an end in time");
    assert_eq!(read, 0);
    drop(polls);
}

/// The driver waits for nothing that could still wake its reader.
#[test]
fn the_task_that_reads_ends_with_its_connection() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let (shared, _server) = {
        let _inside = runtime.enter();
        let (_socket, registrations, server) = sockets();
        // The caller's runtime is not that of the manager's thread.
        let manager = Builder::new_current_thread().build().expect("a runtime");
        let _on_the_manager = manager.enter();
        (
            SharedDriver::new(Box::pin(pending()), registrations, Arc::default()),
            server,
        )
    };
    {
        let _inside = runtime.enter();
        shared.ensure_reader();
    }
    let alive = || runtime.metrics().num_alive_tasks();
    eventually("it reads", || shared.reader.lock().waker.is_some());
    assert_eq!(alive(), 1);
    drop(Ending(shared.clone()));
    eventually("its task has ended", || alive() == 0);
}

/// Counts how often a socket is registered.
struct Counted(Arc<dyn Registrations>, AtomicU64);

impl Registrations for Counted {
    fn begin(&self, polling: Polling) {
        self.0.begin(polling);
    }

    fn has_put_off_reads(&self) -> bool {
        self.0.has_put_off_reads()
    }

    fn register_here(&self) -> io::Result<Registration> {
        self.1.fetch_add(1, SeqCst);
        self.0.register_here()
    }

    fn replace(&self, registration: Registration) {
        self.0.replace(registration);
    }

    fn wake(&self, reader: Waker) {
        self.0.wake(reader);
    }

    fn has_work(&self) -> bool {
        self.0.has_work()
    }

    fn close(&self) {
        self.0.close();
    }
}

/// Each try is a panic, which the program may report.
#[test]
fn a_runtime_without_a_reactor_is_reported_once() {
    let manager = runtime();
    let _inside = manager.enter();
    let (_socket, registrations, _server) = sockets();
    let counted = Arc::new(Counted(registrations, AtomicU64::new(0)));
    let shared = SharedDriver::new(Box::pin(pending()), counted.clone(), Arc::default());
    for tried in 1..=3 {
        let without = Builder::new_current_thread().build().expect("a runtime");
        let _inside = without.enter();
        for _ in 0..5 {
            shared.ensure_reader();
        }
        assert_eq!(counted.1.load(SeqCst), tried);
        assert_eq!(shared.reader_number.load(SeqCst), MANAGER);
    }
}

/// A request that saw to the next poll is woken after a crowd has polled. By then another request sees to those that came since.
#[test]
fn a_request_does_not_poll_for_those_that_another_one_sees_to() {
    const IN_FLIGHT: usize = 64;
    let of_the_manager = runtime();
    let polls = Arc::new(AtomicU64::new(0));
    let shared = {
        let _inside = of_the_manager.enter();
        let (_socket, registrations, _server) = sockets();
        let counted = polls.clone();
        let driver: Driver = Box::pin(poll_fn(move |_| {
            counted.fetch_add(1, SeqCst);
            Poll::Pending
        }));
        SharedDriver::new(driver, registrations, Arc::default())
    };
    // Its reader is not polled, since the runtime is not driven.
    let of_the_user = runtime();
    let _inside = of_the_user.enter();
    let send = || {
        shared.ensure_reader();
        shared.see_to(IN_FLIGHT, Waker::noop())
    };
    let first = send();
    assert!(first.is_some());
    for queued in 2..=IN_FLIGHT / PART {
        assert_eq!(polls.load(SeqCst), 0, "{queued}");
        assert!(send().is_none());
    }
    assert_eq!(polls.load(SeqCst), 1, "the crowd leaves");
    let next = send();
    drop(first);
    assert_eq!(polls.load(SeqCst), 1, "the next one sees to itself");
    drop(next);
    assert_eq!(polls.load(SeqCst), 2);
    assert_eq!(shared.reads.load(SeqCst), 0, "reading is for the reader");
}
