//! Requests on a connection with a shared driver: more than its queue has room for, wakers that panic, and messages of several
//! requests.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream as StdUnixStream,
    pin::pin,
    sync::{Arc, mpsc},
    task::{Context, Wake, Waker},
    thread,
};

use redis::{
    AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, Value, aio::MultiplexedConnection,
};
use tokio::{
    net::UnixStream,
    task::{JoinHandle, yield_now},
    time::timeout,
};

use crate::backend::redis::transport::{
    CLOCK, Connection,
    command::{Arg, command, in_one_message},
    shared_driver::{
        SharedDriver,
        gathering::{CROWD, Change, Compose, MessagePart, PartReply},
        tests::{HANG, runtime},
    },
    shared_socket::{SharedSocket, Socket},
    stream::Watched,
    traffic::{NoReply, Traffic},
};

/// How many requests the queue of the driver has room for.
const ROOM: usize = 1 << 12;

/// A connection with a thread of its manager, and the server's end.
fn connected() -> (Arc<Connection>, StdUnixStream) {
    let (made, result) = mpsc::channel();
    let of_the_manager = async move {
        let (ours, server) = UnixStream::pair().expect("a pair of sockets");
        let ours = ours.into_std().expect("a socket");
        let socket = SharedSocket::new(Socket::Unix(ours));
        let server = server.into_std().expect("a socket");
        server.set_nonblocking(false).expect("a socket");
        server.set_read_timeout(Some(HANG)).expect("a socket");
        let registrations = socket.registrations();
        let traffic = Arc::<Traffic>::default();
        let stream = Watched::new(Box::new(socket), traffic.clone());
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_pipeline_buffer_size(ROOM);
        let info = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP2)
            .set_skip_set_lib_name();
        let opened = MultiplexedConnection::new_with_config(&info, stream, config).await;
        let (handle, driver) = opened.expect("nothing is sent in a greeting");
        let shared = SharedDriver::new(Box::pin(driver), registrations, traffic.clone());
        let watched = shared.clone().watched();
        let connection = Arc::new(Connection::new(handle, traffic).sharing(shared));
        let both = (connection.clone(), server);
        made.send(both).expect("the test waits");
        connection.drive(watched, HANG * 2, || {}, || {}).await;
    };
    thread::spawn(move || runtime().block_on(of_the_manager));
    result.recv().expect("it is connected")
}

/// Asks for a number, in 500 bytes.
fn ask(number: usize) -> redis::Pipeline {
    let long = format!("{number:0>500}");
    in_one_message([command(&[&[Arg::Text("ECHO"), Arg::Text(&long)]])])
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

type Asked = JoinHandle<Result<Vec<Value>, NoReply>>;

/// Tasks with a request each, when all of them wait. The buffers of the socket take some, and the queue takes as many as it has room
/// for.
async fn all_in_flight(connection: &Arc<Connection>, requests: usize) -> Vec<Asked> {
    let tasks = (0..requests).map(|number| tokio::spawn(connection.request(ask(number), None)));
    let tasks = tasks.collect();
    while connection.traffic.in_flight() < requests {
        yield_now().await;
    }
    tasks
}

async fn has_its_reply(task: Asked, number: usize) {
    let reply = timeout(HANG, task).await.expect("a reply");
    let reply = reply.expect("no panic").expect("it is open");
    assert!(is_reply(reply.first(), number), "{number}: {reply:?}");
}

#[test]
fn requests_for_which_the_queue_has_no_room_leave_once_and_have_their_replies() {
    let requests = ROOM * 3;
    let (connection, server) = connected();
    let serving = runtime().block_on(async {
        let tasks = all_in_flight(&connection, requests).await;
        let serving = thread::spawn(move || serve(&server, requests));
        for (number, task) in tasks.into_iter().enumerate() {
            has_its_reply(task, number).await;
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
    let (connection, server) = connected();
    let arrived = runtime().block_on(async {
        let tasks = all_in_flight(&connection, requests).await;
        // The last third: more than the buffers take have found no room.
        for task in &tasks[requests - ROOM..] {
            task.abort();
        }
        yield_now().await;
        let left = requests - ROOM;
        let serving = thread::spawn(move || (serve(&server, left + 1), server));
        for (number, task) in tasks.into_iter().take(left).enumerate() {
            has_its_reply(task, number).await;
        }
        let last = connection.request(ask(requests), None);
        let reply = timeout(HANG, last).await.expect("a reply");
        assert!(is_reply(reply.expect("it is open").first(), requests));
        serving.join().expect("no panic").0
    });
    let last = arrived.last().copied();
    assert_eq!(last, Some(requests), "behind all others");
}

/// More than a crowd is in flight, so the message waits for others.
#[test]
fn a_request_that_leaves_alone_arrives_behind_one_that_has_joined_a_message() {
    let (connection, server) = connected();
    runtime().block_on(async {
        let mut before = all_in_flight(&connection, CROWD.start).await;
        let (sent, compose) = (
            CLOCK.now(),
            |mut handle: MultiplexedConnection| -> Compose {
                Box::new(move |_| {
                    Box::pin(async move {
                        let asked = command(&[&[
                            Arg::Text("ECHO"),
                            Arg::Text(&format!("{:0>500}", CROWD.start)),
                        ]]);
                        let value = handle.send_packed_command(&asked).await?;
                        Ok(vec![PartReply {
                            value,
                            ..PartReply::default()
                        }])
                    })
                })
            },
        );
        let part = MessagePart {
            subject: Arc::new("k".to_owned()),
            change: Change::Delete,
        };
        let gathering = &connection.shared.as_ref().expect("it shares").gathering;
        let joining = pin!(gathering.join(part, || compose(connection.handle.clone())));
        let mut joined = pin!(connection.reply(joining, None, sent, None));
        let mut context = Context::from_waker(Waker::noop());
        assert!(joined.as_mut().poll(&mut context).is_pending());
        before.push(tokio::spawn(connection.request(ask(CROWD.start + 1), None)));
        yield_now().await;
        let serving = thread::spawn(move || serve(&server, CROWD.start + 2));
        let last = before.pop().expect("the one that leaves alone");
        has_its_reply(last, CROWD.start + 1).await;
        let reply = timeout(HANG, joined)
            .await
            .expect("a reply")
            .expect("it is open");
        assert!(is_reply(Some(&reply.value), CROWD.start));
        let arrived = serving.join().expect("no panic");
        assert!(arrived.is_sorted(), "{arrived:?}");
    });
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
    let (connection, server) = connected();
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
