//! A shared driver on real sockets and threads: full queues, readers that do not run, and wakers that panic.

use std::{
    future::{pending, poll_fn},
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream as StdUnixStream,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use redis::{
    AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, Value, aio::MultiplexedConnection,
};
use tokio::{
    net::UnixStream,
    runtime::{Builder, Runtime},
    task::yield_now,
    time::timeout,
};

use crate::store::redis::connection::{
    Connection,
    shared_driver::{SharedDriver, reader::MANAGER, watchdog::Ending},
    wire::{
        command::{Arg, Outgoing, command},
        driver::Driver,
        shared_socket::{Polling, Registration, Registrations, SharedSocket},
        stream::Watched,
        traffic::Traffic,
    },
};

/// Far longer than any step here takes.
const HANG: Duration = Duration::from_secs(30);

/// How many requests the queue of the driver has room for.
const ROOM: usize = 1 << 12;

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
    let socket = SharedSocket::unix(ours).expect("a socket");
    let registrations = socket.registrations();
    let here = registrations.register_here().expect("a registration");
    assert!(registrations.replace(here).is_none());
    let theirs = theirs.into_std().expect("a socket");
    theirs.set_nonblocking(false).expect("a socket");
    theirs.set_read_timeout(Some(HANG)).expect("a socket");
    (socket, registrations, theirs)
}

/// A connection with a thread of its manager, and the server's end.
fn connected() -> (Arc<Connection>, Arc<SharedDriver>, StdUnixStream) {
    let (made, result) = mpsc::channel();
    let of_the_manager = async move {
        let (socket, registrations, server) = sockets();
        let traffic = Arc::new(Traffic::new());
        let stream = Watched::new(Box::new(socket), traffic.clone());
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_pipeline_buffer_size(ROOM);
        let info = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP2)
            .set_skip_set_lib_name();
        let opened = MultiplexedConnection::new_with_config(&info, stream, config).await;
        let (handle, driver) = opened.expect("nothing is sent in a greeting");
        let shared = SharedDriver::new(Box::pin(driver), registrations);
        let watch = shared.clone().watch({
            let traffic = traffic.clone();
            move || traffic.in_flight()
        });
        let connection = Arc::new(Connection::new(handle, traffic).sharing(shared.clone()));
        made.send((connection.clone(), shared, server))
            .expect("the test waits");
        connection
            .drive(Box::pin(watch), HANG * 2, || {}, || {})
            .await;
    };
    thread::spawn(move || runtime().block_on(of_the_manager));
    result.recv().expect("it is connected")
}

/// Asks for a number, in 500 bytes.
fn ask(number: usize) -> Outgoing {
    let long = format!("{number:0>500}");
    Outgoing::One(command(&[&[Arg::Text("ECHO"), Arg::Text(&long)]]))
}

/// Replies to this many requests, each with its number. Returns the numbers in the order in which they arrived.
fn serve(server: &StdUnixStream, requests: usize) -> Vec<usize> {
    let mut lines = BufReader::new(server).lines();
    let mut line = || lines.next().expect("no end").expect("a request in time");
    let numbers = (0..requests).map(|_| {
        let words: [String; 5] = std::array::from_fn(|_| line());
        let number = words[4].parse().expect("a number");
        let reply = format!(":{number}\r\n");
        (&mut &*server)
            .write_all(reply.as_bytes())
            .expect("it is open");
        number
    });
    numbers.collect()
}

fn is_reply(reply: Option<&Value>, number: usize) -> bool {
    let number = i64::try_from(number).expect("a small number");
    reply == Some(&Value::Int(number))
}

#[test]
fn requests_for_which_the_queue_has_no_room_leave_once_and_have_their_replies() {
    let requests = ROOM * 3;
    let (connection, _shared, server) = connected();
    let serving = runtime().block_on(async {
        let tasks: Vec<_> = (0..requests)
            .map(|number| tokio::spawn(connection.request(ask(number), None)))
            .collect();
        // The buffers of the socket take some, and the queue takes as many as it has room for.
        while connection.traffic.in_flight() < requests {
            yield_now().await;
        }
        let serving = thread::spawn(move || serve(&server, requests));
        for (number, task) in tasks.into_iter().enumerate() {
            let reply = timeout(HANG, task).await.expect("a reply");
            let reply = reply.expect("no panic").expect("it is open");
            assert!(is_reply(reply.first(), number), "{number}: {reply:?}");
        }
        serving
    });
    let mut arrived = serving.join().expect("no panic");
    assert!(arrived[..ROOM].is_sorted(), "those that found room");
    arrived.sort_unstable();
    assert!(arrived.into_iter().eq(0..requests), "each once");
}

/// A request that waits for room is dropped: it never leaves, and those behind it do.
#[test]
fn requests_that_are_dropped_while_they_wait_for_room_never_leave() {
    let requests = ROOM * 3;
    let (connection, _shared, server) = connected();
    let arrived = runtime().block_on(async {
        let tasks: Vec<_> = (0..requests)
            .map(|number| tokio::spawn(connection.request(ask(number), None)))
            .collect();
        while connection.traffic.in_flight() < requests {
            yield_now().await;
        }
        // The last third: more than the buffers take have found no room.
        for task in &tasks[requests - ROOM..] {
            task.abort();
        }
        yield_now().await;
        let left = requests - ROOM;
        let serving = thread::spawn(move || (serve(&server, left + 1), server));
        for (number, task) in tasks.into_iter().take(left).enumerate() {
            let reply = timeout(HANG, task).await.expect("a reply");
            let reply = reply.expect("no panic").expect("it is open");
            assert!(is_reply(reply.first(), number), "{number}: {reply:?}");
        }
        let last = connection.request(ask(requests), None);
        let reply = timeout(HANG, last).await.expect("a reply");
        assert!(is_reply(reply.expect("it is open").first(), requests));
        serving.join().expect("no panic").0
    });
    let last = arrived.last().copied();
    assert_eq!(last, Some(requests), "behind all others");
}

struct Broken;

impl Wake for Broken {
    fn wake(self: Arc<Self>) {
        panic!("as this executor does");
    }
}

/// More than one thread polls the driver for in a row, and they come in one read.
#[test]
fn wakers_that_panic_cost_no_request_its_reply() {
    let broken = 40;
    let (connection, _shared, server) = connected();
    runtime().block_on(async {
        let waker = Waker::from(Arc::new(Broken));
        let mut requests: Vec<_> = (0..broken)
            .map(|number| connection.request(ask(number), None))
            .collect();
        for request in &mut requests {
            let polled = request.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        let next = tokio::spawn(connection.request(ask(broken), None));
        let serving = thread::spawn(move || serve(&server, broken + 2));
        let reply = timeout(HANG, next).await.expect("a reply");
        let reply = reply.expect("no panic").expect("it is open");
        assert!(is_reply(reply.first(), broken), "{reply:?}");
        for (number, request) in requests.into_iter().enumerate() {
            let reply = timeout(HANG, request).await.expect("a reply");
            let reply = reply.expect("it is open");
            assert!(is_reply(reply.first(), number), "{number}: {reply:?}");
        }
        // The flags of this thread are as before.
        let after = connection.request(ask(broken + 1), None);
        let reply = timeout(HANG, after).await.expect("a reply");
        assert!(is_reply(reply.expect("it is open").first(), broken + 1));
        serving.join().expect("no panic");
    });
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

/// The waker is called when a request that waited for room is queued. Its reader, whose runtime does not run, would not notice.
#[test]
fn the_watchdog_polls_a_driver_that_was_woken_while_its_reader_does_not_run() {
    let polls = Arc::new(AtomicU64::new(0));
    let (made, result) = mpsc::channel();
    let counted = polls.clone();
    let of_the_manager = async move {
        let (_socket, registrations, server) = sockets();
        let driver: Driver = Box::pin(poll_fn(move |_| {
            counted.fetch_add(1, SeqCst);
            Poll::Pending
        }));
        let shared = SharedDriver::new(driver, registrations);
        made.send((shared.clone(), server)).expect("the test waits");
        shared.watch(|| 1).await;
    };
    thread::spawn(move || runtime().block_on(of_the_manager));
    let (shared, _server) = result.recv().expect("it is there");
    let stands_still = runtime();
    {
        let _inside = stands_still.enter();
        shared.ensure_reader();
    }
    assert!(shared.reader_number.load(SeqCst) > MANAGER);
    let before = polls.load(SeqCst);
    shared.waker.wake_by_ref();
    eventually("it is polled", || polls.load(SeqCst) > before);
}

/// A thread is stopped while it has the driver. What the driver has taken must not leave when the thread goes on.
#[test]
fn a_connection_that_ends_while_a_thread_has_its_driver_is_closed() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let (socket, registrations, mut server) = sockets();
    let driver: Driver = Box::pin(async move {
        let _socket = socket;
        pending().await
    });
    let shared = SharedDriver::new(driver, registrations);
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
            SharedDriver::new(Box::pin(pending()), registrations),
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

    fn replace(&self, registration: Registration) -> Option<Registration> {
        self.0.replace(registration)
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
fn a_runtime_without_a_reactor_is_asked_for_one_once() {
    let manager = runtime();
    let _inside = manager.enter();
    let (_socket, registrations, _server) = sockets();
    let counted = Arc::new(Counted(registrations, AtomicU64::new(0)));
    let shared = SharedDriver::new(Box::pin(pending()), counted.clone());
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
