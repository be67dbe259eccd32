//! Tests of the properties of a session, and of a handle of the `redis` crate, that the rest of this crate relies on.
//! The `redis` crate does not document them. If one of these tests fails after an upgrade of that crate, locks through
//! a user's own client are not safe.

use std::{
    future::{Future, poll_fn},
    net::Shutdown,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, Value,
    aio::MultiplexedConnection,
};
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    task::{JoinHandle, coop},
    time::timeout,
};

use crate::{
    backend::{
        in_flight::InFlight,
        redis::transport::{
            CLOCK,
            command::{Arg, Commands, command, in_one_message},
            connection::{Connection, Line},
            connection_events::{ConnectionEvents, RepliesOnly},
            session::Session,
            socket::Socket,
            stream::Stream,
            traffic::{NoReply, Traffic},
        },
    },
    moment::Moment,
    runtime::mutex::Mutex,
};

/// A time far longer than any step here takes.
const HANG: Duration = Duration::from_secs(30);

/// The future of the replies to a request.
type Request = Pin<Box<dyn Future<Output = Result<Vec<Value>, NoReply>> + Send>>;

impl Connection {
    /// Sends a request with one reply for each command, as a future that owns its connection.
    pub(super) fn request(self: &Arc<Self>, commands: Commands, until: Option<Moment>) -> Request {
        let connection = self.clone();
        Box::pin(async move { connection.several(commands, None, until).await })
    }
}

/// Returns a session that is watched, and the server's end.
fn session_with(events: Arc<dyn ConnectionEvents>) -> (Arc<Connection>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let traffic = Arc::<Traffic>::default();
    let stream = Stream::Plain(Socket::from(ours));
    let session = Session::start(stream, traffic.clone(), events);
    (
        watched(Connection::new(Line::Session(session), traffic)),
        theirs,
    )
}

/// Returns a handle of the `redis` crate that is watched, and the server's end.
async fn client() -> (Arc<Connection>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1 << 12);
    let info = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP2)
        .set_skip_set_lib_name();
    let made = MultiplexedConnection::new_with_config(&info, ours, config).await;
    let (handle, driver) = made.expect("nothing is sent in a greeting");
    drop(tokio::spawn(driver));
    (
        watched(Connection::new(Line::Client(handle), Arc::default())),
        theirs,
    )
}

fn watched(connection: Connection) -> Arc<Connection> {
    let connection = Arc::new(connection);
    let own = connection.clone();
    drop(tokio::spawn(async move {
        own.watch(Duration::from_secs(10), || {}, || {}).await;
    }));
    connection
}

/// Returns a connection of each kind that no task reads. The future of the `redis` crate does not end with its
/// connection.
async fn undriven() -> [Arc<Connection>; 2] {
    let session = session_with(Arc::new(RepliesOnly)).0;
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let info = RedisConnectionInfo::default().set_skip_set_lib_name();
    let (ours, _) = UnixStream::pair().expect("a pair of sockets");
    let made = MultiplexedConnection::new_with_config(&info, ours, config).await;
    let (handle, driver) = made.expect("nothing is sent in a greeting");
    std::mem::forget(driver);
    [
        session,
        Arc::new(Connection::new(Line::Client(handle), Arc::default())),
    ]
}

/// Returns a connection of each kind.
async fn each() -> [(Arc<Connection>, UnixStream); 2] {
    [session_with(Arc::new(RepliesOnly)), client().await]
}

fn get(key: &str) -> Commands {
    command(&[&[Arg::Text("GET"), Arg::Text(key)]])
}

fn sent(key: &str) -> String {
    format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len())
}

/// Expects these bytes to be the next that the server receives.
async fn expect(server: &mut UnixStream, expected: &str) {
    let mut bytes = vec![0; expected.len()];
    let read = timeout(HANG, server.read_exact(&mut bytes)).await;
    read.expect("the bytes arrive")
        .expect("the connection is open");
    assert_eq!(String::from_utf8_lossy(&bytes), expected);
}

/// Awaits a task, and returns its result.
async fn returned<T>(task: JoinHandle<T>) -> T {
    let returned = timeout(HANG, task).await;
    returned.expect("no hang").expect("no panic")
}

fn poll_once(future: Pin<&mut (impl Future + ?Sized)>) {
    let polled = future.poll(&mut Context::from_waker(std::task::Waker::noop()));
    assert!(polled.is_pending());
}

#[tokio::test]
async fn requests_leave_in_the_order_of_their_first_polls() {
    for (connection, mut server) in each().await {
        let mut later = Box::pin(connection.request(get("later"), None));
        let mut first = Box::pin(connection.request(get("first"), None));
        poll_once(first.as_mut());
        poll_once(later.as_mut());
        expect(&mut server, &(sent("first") + &sent("later"))).await;
        server
            .write_all(b":1\r\n:2\r\n")
            .await
            .expect("the connection is open");
        let later = timeout(HANG, later)
            .await
            .expect("a reply")
            .expect("a reply");
        let first = timeout(HANG, first)
            .await
            .expect("a reply")
            .expect("a reply");
        assert_eq!((first, later), (vec![Value::Int(1)], vec![Value::Int(2)]));
    }
}

#[tokio::test]
async fn commands_of_many_threads_are_whole_and_in_order() {
    for (connection, server) in each().await {
        many_threads(connection, server).await;
    }
}

async fn many_threads(connection: Arc<Connection>, mut server: UnixStream) {
    const THREADS: usize = 4;
    const EACH: usize = 500;
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let connection = connection.clone();
            tokio::task::spawn_blocking(move || {
                for number in 0..EACH {
                    let key = format!("{thread} {number} {:600}", "");
                    // No task awaits the reply, but the driver still accepts the request.
                    let mut request = Box::pin(connection.request(get(&key), None));
                    poll_once(request.as_mut());
                    std::mem::forget(request);
                }
            })
        })
        .collect();
    let mut next = [0; THREADS];
    for _ in 0..THREADS * EACH {
        let mut bytes = vec![0; sent(&format!("0 0 {:600}", "")).len()];
        // Numbers differ in length, and the head contains the length of the rest.
        let head = "*2\r\n$3\r\nGET\r\n$".len();
        timeout(HANG, server.read_exact(&mut bytes[..head + 5]))
            .await
            .expect("the bytes arrive")
            .expect("the connection is open");
        let size: usize = String::from_utf8_lossy(&bytes[head..head + 3])
            .parse()
            .expect("a length");
        bytes.resize(size + 2, 0);
        let read = timeout(HANG, server.read_exact(&mut bytes)).await;
        read.expect("the bytes arrive")
            .expect("the connection is open");
        let line = String::from_utf8_lossy(&bytes).into_owned();
        let mut words = line.split(' ');
        let mut word = || -> usize { words.next().expect("two").parse().expect("a number") };
        let (thread, number) = (word(), word());
        assert_eq!(number, next[thread]);
        next[thread] += 1;
    }
    for thread in threads {
        thread.await.expect("no panic");
    }
}

#[tokio::test]
async fn a_request_dropped_after_it_was_sent_runs_before_later_ones() {
    for (connection, mut server) in each().await {
        let mut dropped = Box::pin(connection.request(get("dropped"), None));
        poll_once(dropped.as_mut());
        expect(&mut server, &sent("dropped")).await;
        drop(dropped);
        let next = tokio::spawn(connection.request(get("next"), None));
        expect(&mut server, &sent("next")).await;
        server
            .write_all(b":1\r\n:2\r\n")
            .await
            .expect("the connection is open");
        let reply = returned(next).await;
        assert_eq!(reply.expect("a reply"), [Value::Int(2)]);
    }
}

#[tokio::test]
async fn nothing_is_sent_twice_and_the_socket_is_never_replaced() {
    for (connection, mut server) in each().await {
        let request = tokio::spawn(connection.request(get("once"), None));
        expect(&mut server, &sent("once")).await;
        drop(server);
        let reply = returned(request).await;
        assert!(matches!(reply, Err(NoReply::Broken(_))), "{reply:?}");
        let reply = timeout(HANG, connection.request(get("again"), None)).await;
        let reply = reply.expect("an end");
        assert!(
            matches!(reply, Err(NoReply::Broken(_) | NoReply::NotSent)),
            "{reply:?}"
        );
        assert!(connection.traffic.has_ended());
    }
}

#[tokio::test]
async fn a_request_leaves_with_its_first_poll_however_long_its_task_has_run() {
    for (connection, mut server) in each().await {
        let until = CLOCK.now().after(HANG);
        let mut request = Box::pin(connection.request(get("a"), Some(until)));
        poll_fn(|context| {
            // Uses up the budget that tokio gives a task before it lets others run.
            while let Poll::Ready(budget) = coop::poll_proceed(context) {
                budget.made_progress();
            }
            assert!(request.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        expect(&mut server, &sent("a")).await;
    }
}

struct Broken;

impl std::task::Wake for Broken {
    fn wake(self: Arc<Self>) {
        panic!("a panic of the executor");
    }
}

#[tokio::test]
async fn other_requests_get_their_replies_even_if_a_waker_panics() {
    let (connection, mut server) = session_with(Arc::new(RepliesOnly));
    let mut broken = Box::pin(connection.request(get("broken"), None));
    let waker = std::task::Waker::from(Arc::new(Broken));
    let polled = broken.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    let next = tokio::spawn(connection.request(get("next"), None));
    expect(&mut server, &(sent("broken") + &sent("next"))).await;
    server
        .write_all(b":1\r\n:2\r\n")
        .await
        .expect("the connection is open");
    let reply = returned(next).await;
    assert_eq!(reply.expect("a reply"), [Value::Int(2)]);
    let reply = timeout(HANG, broken).await.expect("a reply");
    assert_eq!(reply.expect("a reply"), [Value::Int(1)]);
}

#[tokio::test]
async fn an_error_among_several_replies_is_one_of_them() {
    for (connection, mut server) in each().await {
        let both = in_one_message([
            command(&[&[Arg::Text("ONE")]]),
            command(&[&[Arg::Text("TWO")]]),
        ]);
        let both = tokio::spawn(connection.request(both, None));
        server
            .write_all(b"-NOSCRIPT no\r\n:2\r\n")
            .await
            .expect("the connection is open");
        let replies = returned(both).await;
        let replies = replies.expect("replies");
        assert!(
            matches!(&replies[..], [Value::ServerError(error), Value::Int(2)] if error.code() == "NOSCRIPT"),
            "{replies:?}"
        );
    }
}

#[tokio::test]
async fn a_retired_connection_ends_after_the_replies_in_flight() {
    let (connection, mut server) = session_with(Arc::new(RepliesOnly));
    let request = tokio::spawn(connection.request(get("last"), None));
    expect(&mut server, &sent("last")).await;
    connection.traffic.retire();
    let refused = connection.request(get("no more"), None).await;
    assert!(matches!(refused, Err(NoReply::NotSent)), "{refused:?}");
    server
        .write_all(b":1\r\n")
        .await
        .expect("the connection is open");
    let reply = returned(request).await;
    assert_eq!(reply.expect("a reply"), [Value::Int(1)]);
    let end = timeout(HANG, server.read(&mut [0])).await;
    assert_eq!(
        end.expect("the connection closes")
            .expect("without an error"),
        0
    );
}

#[tokio::test]
async fn an_endless_reply_ends_the_connection() {
    let (connection, mut server) = session_with(Arc::new(RepliesOnly));
    let request = tokio::spawn(connection.request(get("a"), None));
    expect(&mut server, &sent("a")).await;
    let flood = tokio::spawn(async move {
        server
            .write_all(b"$99999999999\r\n")
            .await
            .expect("the connection is open");
        let piece = vec![b'x'; 1 << 16];
        let mut taken = 0_usize;
        while server.write_all(&piece).await.is_ok() {
            taken += piece.len();
        }
        taken
    });
    let reply = returned(request).await;
    assert!(matches!(reply, Err(NoReply::Nonsense)), "{reply:?}");
    let taken = returned(flood).await;
    assert!(taken < 1 << 27, "{taken} bytes were taken");
}

#[tokio::test]
async fn hostile_replies_end_the_connection_and_nothing_else() {
    let deep = "*1\r\n".repeat(10_000);
    let hostile = [
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "*9223372036854775807\r\n:1\r\n",
        "%9223372036854775807\r\n:1\r\n",
        "*999999999999\r\n",
        "$-9\r\n:1\r\n",
        ">0\r\n:x\r\n",
        "|1\r\n+a\r\n+b\r\n:x\r\n",
        ":not a number\r\n",
        "=3\r\nabc\r\n",
        "\0\0\0\0\r\n",
        &deep,
    ];
    for bytes in hostile {
        let (connection, mut server) = session_with(Arc::new(RepliesOnly));
        let request = tokio::spawn(connection.request(get("a"), None));
        expect(&mut server, &sent("a")).await;
        // The driver may end before everything is written.
        drop(server.write_all(bytes.as_bytes()).await);
        drop(server);
        let reply = timeout(HANG, request)
            .await
            .expect(bytes)
            .expect("no panic");
        let is_sane = matches!(&reply, Ok(values) if *values == [Value::Nil]);
        assert!(reply.is_err() || is_sane, "{bytes}: {reply:?}");
    }
}

#[derive(Debug, Default)]
struct Pushes(Mutex<Vec<PushKind>>);

impl ConnectionEvents for Pushes {
    fn pushed(&self, message: &PushInfo) {
        self.0.lock().push(message.kind.clone());
    }
}

#[tokio::test]
async fn the_end_of_a_subscription_is_not_mistaken_for_a_reply() {
    let pushes = Arc::<Pushes>::default();
    let (connection, mut server) = session_with(pushes.clone());
    let one = tokio::spawn(connection.request(get("one"), None));
    expect(&mut server, &sent("one")).await;
    let ended = ">3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n";
    let replies = format!("{ended}+ONE\r\n");
    server
        .write_all(replies.as_bytes())
        .await
        .expect("the connection is open");
    let reply = returned(one).await.expect("a reply");
    assert_eq!(reply, [Value::SimpleString("ONE".to_owned())]);
    assert_eq!(*pushes.0.lock(), [PushKind::SUnsubscribe]);
}

/// After a late reply, no reply counts until the reply to a probe arrives in order.
#[tokio::test]
async fn a_lost_reply_is_found_by_a_probe_after_a_time_out() {
    let probe = "*2\r\n$4\r\nPING\r\n$17\r\nlock-core:probe:1\r\n";
    for (replies, is_in_place) in [
        (":1\r\n$17\r\nlock-core:probe:1\r\n:2\r\n", true),
        // The first reply is lost.
        ("$17\r\nlock-core:probe:1\r\n:2\r\n:3\r\n", false),
    ] {
        let (connection, mut server) = session_with(Arc::new(RepliesOnly));
        let late = connection.request(get("late"), Some(CLOCK.now()));
        let late = timeout(HANG, late).await.expect("an end");
        assert!(matches!(late, Err(NoReply::Late)), "{late:?}");
        let next = tokio::spawn(connection.request(get("next"), None));
        expect(&mut server, &(sent("late") + probe + &sent("next"))).await;
        server
            .write_all(replies.as_bytes())
            .await
            .expect("the connection is open");
        let reply = returned(next).await;
        match reply {
            Ok(reply) => assert!(is_in_place && reply == [Value::Int(2)], "{reply:?}"),
            Err(NoReply::Broken(_)) => assert!(!is_in_place),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_request_ends_when_its_connection_ends() {
    for is_early in [true, false] {
        for connection in undriven().await {
            let mut request = Box::pin(connection.request(get("a"), None));
            if !is_early {
                poll_once(request.as_mut());
            }
            connection.end(NoReply::Nonsense);
            let ended = timeout(HANG, request).await.expect("no hang");
            let is_sane = matches!(ended, Err(NoReply::Nonsense | NoReply::NotSent));
            assert!(is_sane, "{ended:?}");
        }
    }
}

#[tokio::test]
async fn a_request_that_does_not_leave_is_not_recorded_as_sent() {
    for (connection, _server) in each().await {
        connection.traffic.retire();
        let in_flight = InFlight::default();
        let refused = connection.several(get("a"), Some(&in_flight), None).await;
        assert!(matches!(refused, Err(NoReply::NotSent)), "{refused:?}");
        assert!(in_flight.is_empty());
    }
}

#[tokio::test]
async fn a_failed_write_ends_the_session_even_if_nothing_arrives() {
    let (connection, mut server) = session_with(Arc::new(RepliesOnly));
    let request = tokio::spawn(connection.request(get("a"), None));
    expect(&mut server, &sent("a")).await;
    server
        .write_all(b":1\r\n")
        .await
        .expect("the connection is open");
    returned(request).await.expect("a reply");
    SockRef::from(&server)
        .shutdown(Shutdown::Read)
        .expect("the connection is open");
    let reply = connection.request(get("a"), None);
    let ended = timeout(HANG, reply).await.expect("no hang");
    assert!(
        matches!(&ended, Err(NoReply::Broken(why)) if why.contains("Broken pipe")),
        "{ended:?}"
    );
}
