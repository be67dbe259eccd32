//! What the crate `redis` does without documenting it, and what this crate relies on. If one of these tests fails after an upgrade
//! of that crate, the promises of the connection must be examined again.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, Value,
    aio::MultiplexedConnection,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::mpsc,
    task::{JoinHandle, coop},
    time::timeout,
};

use crate::{
    backend::redis::transport::{
        CLOCK, Connection,
        command::{Arg, command, in_one_message},
        shared_driver::Driver,
        stream::Watched,
        traffic::{NoReply, Traffic},
    },
    moment::Moment,
};

/// Far longer than any step here takes.
const HANG: Duration = Duration::from_secs(30);

/// The future of the replies to a request.
type Request = Pin<Box<dyn Future<Output = Result<Vec<Value>, NoReply>> + Send>>;

impl Connection {
    /// A request with one reply for each command, as a future that contains its connection.
    pub(super) fn request(
        self: &Arc<Self>,
        commands: redis::Pipeline,
        until: Option<Moment>,
    ) -> Request {
        let connection = self.clone();
        Box::pin(async move {
            connection
                .several(&commands, None, CLOCK.now(), until)
                .await
        })
    }
}

/// A connection, its driver, which does not run yet, and the server's end.
async fn pair() -> (Arc<Connection>, Driver, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let traffic = Arc::<Traffic>::default();
    let stream = Watched::new(Box::new(ours), traffic.clone());
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1 << 12);
    let info = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP2)
        .set_skip_set_lib_name();
    let made = MultiplexedConnection::new_with_config(&info, stream, config).await;
    let (handle, driver) = made.expect("nothing is sent in a greeting");
    let connection = Arc::new(Connection::new(handle, traffic));
    (connection, Box::pin(driver), theirs)
}

/// The same, with the driver running.
async fn driven() -> (Arc<Connection>, UnixStream) {
    let (connection, driver, server) = pair().await;
    let own = connection.clone();
    drop(tokio::spawn(async move {
        own.drive(driver, Duration::from_secs(10), || {}, || {})
            .await;
    }));
    (connection, server)
}

fn get(key: &str) -> redis::Pipeline {
    in_one_message([command(&[&[Arg::Text("GET"), Arg::Text(key)]])])
}

fn sent(key: &str) -> String {
    format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len())
}

/// The next bytes that the server receives, as many as these.
async fn expect(server: &mut UnixStream, expected: &str) {
    let mut bytes = vec![0; expected.len()];
    let read = timeout(HANG, server.read_exact(&mut bytes)).await;
    read.expect("they come").expect("it is open");
    assert_eq!(String::from_utf8_lossy(&bytes), expected);
}

/// What a task returns.
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
    let (connection, mut server) = driven().await;
    let mut later = Box::pin(connection.request(get("later"), None));
    let mut first = Box::pin(connection.request(get("first"), None));
    poll_once(first.as_mut());
    poll_once(later.as_mut());
    expect(&mut server, &(sent("first") + &sent("later"))).await;
    server.write_all(b":1\r\n:2\r\n").await.expect("it is open");
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

#[tokio::test]
async fn commands_of_many_threads_are_whole_and_in_order() {
    const THREADS: usize = 4;
    const EACH: usize = 500;
    let (connection, mut server) = driven().await;
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let connection = connection.clone();
            tokio::task::spawn_blocking(move || {
                for number in 0..EACH {
                    let key = format!("{thread} {number} {:600}", "");
                    // Nothing reads the reply, but the driver still takes the request.
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
        // Numbers differ in length: the head tells how long the rest is.
        let head = "*2\r\n$3\r\nGET\r\n$".len();
        timeout(HANG, server.read_exact(&mut bytes[..head + 5]))
            .await
            .expect("they come")
            .expect("it is open");
        let size: usize = String::from_utf8_lossy(&bytes[head..head + 3])
            .parse()
            .expect("a length");
        bytes.resize(size + 2, 0);
        let read = timeout(HANG, server.read_exact(&mut bytes)).await;
        read.expect("they come").expect("it is open");
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
async fn a_request_that_is_dropped_before_the_driver_took_it_never_leaves() {
    let (connection, driver, mut server) = pair().await;
    let mut dropped = Box::pin(connection.request(get("dropped"), None));
    poll_once(dropped.as_mut());
    drop(dropped);
    let kept = connection.request(get("kept"), None);
    drop(tokio::spawn(driver));
    let kept = tokio::spawn(kept);
    expect(&mut server, &sent("kept")).await;
    server.write_all(b":1\r\n").await.expect("it is open");
    let reply = returned(kept).await;
    assert_eq!(reply.expect("a reply"), [Value::Int(1)]);
}

#[tokio::test]
async fn a_request_that_is_dropped_later_runs_and_what_follows_arrives_behind_it() {
    let (connection, mut server) = driven().await;
    let mut dropped = Box::pin(connection.request(get("dropped"), None));
    poll_once(dropped.as_mut());
    expect(&mut server, &sent("dropped")).await;
    drop(dropped);
    let next = tokio::spawn(connection.request(get("next"), None));
    expect(&mut server, &sent("next")).await;
    server.write_all(b":1\r\n:2\r\n").await.expect("it is open");
    let reply = returned(next).await;
    assert_eq!(reply.expect("a reply"), [Value::Int(2)]);
}

#[tokio::test]
async fn nothing_is_sent_twice_and_the_socket_is_never_replaced() {
    let (connection, mut server) = driven().await;
    let request = tokio::spawn(connection.request(get("once"), None));
    expect(&mut server, &sent("once")).await;
    drop(server);
    let reply = returned(request).await;
    assert!(matches!(reply, Err(NoReply::Broken(_))), "{reply:?}");
    let reply = timeout(HANG, connection.request(get("again"), None)).await;
    let reply = reply.expect("an end");
    assert!(matches!(reply, Err(NoReply::Broken(_))), "{reply:?}");
    assert!(connection.traffic.has_ended());
}

#[tokio::test]
async fn a_request_leaves_with_its_first_poll_however_long_its_task_has_run() {
    let (connection, mut server) = driven().await;
    let until = CLOCK.now().after(HANG);
    let mut request = Box::pin(connection.request(get("a"), Some(until)));
    poll_fn(|context| {
        // Uses up the budget that tokio gives a task before other tasks run.
        while let Poll::Ready(budget) = coop::poll_proceed(context) {
            budget.made_progress();
        }
        assert!(request.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    expect(&mut server, &sent("a")).await;
}

struct Broken;

impl std::task::Wake for Broken {
    fn wake(self: Arc<Self>) {
        panic!("as this executor does");
    }
}

#[tokio::test]
async fn a_waker_that_panics_costs_no_other_request_its_reply() {
    let (connection, mut server) = driven().await;
    let mut broken = Box::pin(connection.request(get("broken"), None));
    let waker = std::task::Waker::from(Arc::new(Broken));
    let polled = broken.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    let next = tokio::spawn(connection.request(get("next"), None));
    expect(&mut server, &(sent("broken") + &sent("next"))).await;
    server.write_all(b":1\r\n:2\r\n").await.expect("it is open");
    let reply = returned(next).await;
    assert_eq!(reply.expect("a reply"), [Value::Int(2)]);
    let reply = timeout(HANG, broken).await.expect("a reply");
    assert_eq!(reply.expect("a reply"), [Value::Int(1)]);
}

#[tokio::test]
async fn an_error_among_several_replies_is_one_of_them() {
    let (connection, mut server) = driven().await;
    let both = in_one_message([
        command(&[&[Arg::Text("ONE")]]),
        command(&[&[Arg::Text("TWO")]]),
    ]);
    let both = tokio::spawn(connection.request(both, None));
    server
        .write_all(b"-NOSCRIPT no\r\n:2\r\n")
        .await
        .expect("it is open");
    let replies = returned(both).await;
    let replies = replies.expect("replies");
    assert!(
        matches!(&replies[..], [Value::ServerError(error), Value::Int(2)] if error.code() == "NOSCRIPT"),
        "{replies:?}"
    );
}

#[tokio::test]
async fn a_late_reply_is_not_given_to_another_request() {
    let (connection, mut server) = driven().await;
    let late = connection.request(get("late"), Some(CLOCK.now()));
    let late = timeout(HANG, late).await.expect("an end");
    assert!(matches!(late, Err(NoReply::Late)), "{late:?}");
    let next = tokio::spawn(connection.request(get("next"), None));
    expect(&mut server, &(sent("late") + &sent("next"))).await;
    server.write_all(b":1\r\n:2\r\n").await.expect("it is open");
    let reply = returned(next).await;
    assert_eq!(reply.expect("a reply"), [Value::Int(2)]);
}

#[tokio::test]
async fn a_retired_connection_ends_after_the_replies_in_flight() {
    let (connection, mut server) = driven().await;
    let request = tokio::spawn(connection.request(get("last"), None));
    expect(&mut server, &sent("last")).await;
    connection.traffic.retire();
    let refused = connection.request(get("no more"), None).await;
    assert!(matches!(refused, Err(NoReply::NotSent)), "{refused:?}");
    server.write_all(b":1\r\n").await.expect("it is open");
    let reply = returned(request).await;
    assert_eq!(reply.expect("a reply"), [Value::Int(1)]);
    let end = timeout(HANG, server.read(&mut [0])).await;
    assert_eq!(end.expect("it closes").expect("without an error"), 0);
}

#[tokio::test]
async fn a_reply_without_an_end_ends_the_connection() {
    let (connection, mut server) = driven().await;
    let request = tokio::spawn(connection.request(get("a"), None));
    expect(&mut server, &sent("a")).await;
    let flood = tokio::spawn(async move {
        server
            .write_all(b"$99999999999\r\n")
            .await
            .expect("it is open");
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
        let (connection, mut server) = driven().await;
        let request = tokio::spawn(connection.request(get("a"), None));
        expect(&mut server, &sent("a")).await;
        // The driver may be gone before all is written.
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

#[tokio::test]
async fn a_subscription_that_the_server_ends_is_taken_for_a_reply() {
    let (ours, mut server) = UnixStream::pair().expect("a pair of sockets");
    let greeted = tokio::spawn(async move {
        let (sender, messages) = mpsc::unbounded_channel::<PushInfo>();
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_push_sender(sender);
        let info = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_skip_set_lib_name();
        let made = MultiplexedConnection::new_with_config(&info, ours, config).await;
        let (handle, driver) = made.expect("greeted");
        let driver: Driver = Box::pin(driver);
        drop(tokio::spawn(driver));
        (handle, messages)
    });
    expect(&mut server, "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n").await;
    server
        .write_all(b"%1\r\n+server\r\n+redis\r\n")
        .await
        .expect("it is open");
    let (mut handle, mut messages) = greeted.await.expect("no panic");
    let mut other = handle.clone();
    let one = tokio::spawn(async move {
        let get = command(&[&[Arg::Text("GET"), Arg::Text("one")]]);
        handle.send_packed_command(&get).await
    });
    expect(&mut server, &sent("one")).await;
    let ended = ">3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n";
    server
        .write_all(format!("{ended}+ONE\r\n").as_bytes())
        .await
        .expect("it is open");
    // If the message is no longer taken for a reply, sharded subscriptions may share a connection with commands.
    let reply = returned(one).await;
    assert!(
        matches!(
            &reply,
            Ok(Value::Push {
                kind: PushKind::SUnsubscribe,
                ..
            })
        ),
        "{reply:?}"
    );
    let message = timeout(HANG, messages.recv()).await.expect("a message");
    assert_eq!(
        message.map(|message| message.kind),
        Some(PushKind::SUnsubscribe)
    );
    // The driver ignores a reply without a request.
    let two = tokio::spawn(async move {
        let get = command(&[&[Arg::Text("GET"), Arg::Text("two")]]);
        other.send_packed_command(&get).await
    });
    expect(&mut server, &sent("two")).await;
    server.write_all(b"+TWO\r\n").await.expect("it is open");
    let reply = returned(two).await;
    assert_eq!(
        reply.expect("a reply"),
        Value::SimpleString("TWO".to_owned())
    );
}
