//! A model of a session under the interleavings of its threads: those that queue requests, the tasks at its homes, and one that
//! moves it.
//!
//! A request is a line with a number, and the server replies with that number at once. A request that is left in the inbox with
//! no task to take it is a deadlock, which the explorer reports.

use std::{
    collections::VecDeque,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use redis::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    backend::redis::transport::{
        command::{Arg, command},
        connection_events::RepliesOnly,
        exchange::{
            Change, Compose, MessagePart,
            tests::{Each, Number},
        },
        session::{Home, Session, Shared},
        stream::Stream,
        traffic::Traffic,
    },
    runtime::mutex::{Mutex, interleaved::explore},
};

/// The number of random schedules for each test: a sample in a build without optimisations, which is slow.
const SCHEDULES: usize = if cfg!(debug_assertions) { 500 } else { 2000 };

/// The server's end of a stream.
#[derive(Default)]
struct Server {
    /// The bytes that were sent and not yet read as a request.
    unread: Vec<u8>,
    /// The number of writes so far.
    writes: usize,
    requests: Vec<u64>,
    replies: VecDeque<u8>,
    reader: Option<Waker>,
    is_closed: bool,
}

#[derive(Clone, Default)]
struct Pipe(Arc<Mutex<Server>>);

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut server = self.0.lock();
        if server.replies.is_empty() && !server.is_closed {
            server.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        // A byte at a time: a value may arrive in pieces.
        if let Some(byte) = server.replies.pop_front() {
            buffer.put_slice(&[byte]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // Less than a request, which takes thirteen bytes.
        const PIECE: usize = 8;
        let mut server = self.0.lock();
        if server.is_closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        server.writes += 1;
        if server.writes.is_multiple_of(3) {
            // The socket is full for a moment.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let bytes = &bytes[..bytes.len().min(PIECE)];
        server.unread.extend_from_slice(bytes);
        while let Some(number) = server.next_request() {
            server.requests.push(number);
            server.replies.extend(format!(":{number}\r\n").bytes());
        }
        let reader = server.reader.take();
        drop(server);
        reader.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Server {
    /// Returns the next request, which is one command of one word of three digits.
    fn next_request(&mut self) -> Option<u64> {
        const LENGTH: usize = "*1\r\n$3\r\n000\r\n".len();
        let words: Vec<u8> = self.unread.get(..LENGTH)?.to_vec();
        self.unread.drain(..LENGTH);
        let digits = std::str::from_utf8(&words[LENGTH - 5..LENGTH - 2]).expect("digits");
        Some(digits.parse().expect("a number"))
    }
}

fn close(pipe: &Pipe) {
    let mut server = pipe.0.lock();
    server.is_closed = true;
    let reader = server.reader.take();
    drop(server);
    reader.into_iter().for_each(Waker::wake);
}

/// Wakes a thread that polls a task. The explorer's own tasks are unsuitable, because they are also polled after each switch of
/// threads.
#[derive(Default)]
struct Woken {
    is_woken: shuttle::sync::Mutex<bool>,
    changed: shuttle::sync::Condvar,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock().expect("no panic") = true;
        self.changed.notify_one();
    }
}

/// Polls the task whenever it is woken, until it completes.
fn run(home: Home) {
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(woken.clone());
    let mut home = pin!(home);
    while home
        .as_mut()
        .poll(&mut Context::from_waker(&waker))
        .is_pending()
    {
        let mut is_woken = woken.is_woken.lock().expect("no panic");
        while !*is_woken {
            is_woken = woken.changed.wait(is_woken).expect("no panic");
        }
        *is_woken = false;
    }
}

/// A session, and the state that its requests share.
#[derive(Clone)]
struct Explored {
    session: Session,
    traffic: Arc<Traffic>,
    pipe: Pipe,
    each: Arc<dyn Compose>,
}

impl Explored {
    fn new() -> Self {
        let (pipe, traffic) = (Pipe::default(), Arc::<Traffic>::default());
        let stream = Stream::Fixed(Box::new(pipe.clone()));
        let session = Session::unstarted(stream, traffic.clone(), Arc::new(RepliesOnly));
        let explored = Self {
            session,
            traffic,
            pipe,
            each: Arc::new(Each),
        };
        explored.move_on();
        explored
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.session.0
    }

    /// Moves the session to another home.
    fn move_on(&self) {
        if let Some(home) = self.shared().rehome(false, |_| true) {
            drop(shuttle::thread::spawn(move || run(home)));
        }
    }

    /// Sends a request in a separate message, or one that may share a message.
    async fn send(&self, number: u64, is_part: bool) -> Option<Value> {
        let in_flight = self.traffic.begin().expect("room");
        if is_part {
            let (part, reply) = MessagePart::new(Arc::new(Number(number)), Change::Delete);
            let reply = (self.session).part(part, self.each.clone(), reply, in_flight);
            return reply.await.map(|reply| reply.value);
        }
        let alone = command(&[&[Arg::Written(&Number(number))]]);
        let mut replies = self.session.alone(alone, in_flight).await?;
        replies.pop()
    }

    /// Sends requests one after the other, and expects the reply to each.
    fn expect_replies(&self, from: u64, count: u64) {
        shuttle::future::block_on(async {
            for number in from..from + count {
                let reply = self.send(number, number % 3 != 0).await;
                let expected = i64::try_from(number).expect("small");
                assert_eq!(reply, Some(Value::Int(expected)));
            }
        });
    }

    /// Puts requests into the inbox in this order, and does not wait for the replies.
    fn leave(&self, numbers: std::ops::Range<u64>) {
        let mut context = Context::from_waker(Waker::noop());
        for number in numbers {
            let request = pin!(self.send(number, number % 2 == 0));
            drop(request.poll(&mut context));
        }
    }
}

/// Runs each closure on a separate thread, and waits for all.
fn on_threads(works: Vec<Box<dyn FnOnce() + Send>>) {
    let threads = works.into_iter().map(shuttle::thread::spawn);
    for thread in threads.collect::<Vec<_>>() {
        thread.join().expect("no panic");
    }
}

#[test]
fn interleaved_requests_have_their_own_replies_wherever_the_session_moves() {
    explore(SCHEDULES, || {
        let explored = Explored::new();
        let [one, other, mover] = [(); 3].map(|()| explored.clone());
        on_threads(vec![
            Box::new(move || one.expect_replies(100, 3)),
            Box::new(move || other.expect_replies(200, 3)),
            Box::new(move || (0..2).for_each(|_| mover.move_on())),
        ]);
        assert_eq!(explored.traffic.in_flight(), 0);
        explored.session.end();
    });
}

#[test]
fn interleaved_requests_that_are_dropped_leave_in_order_before_later_ones() {
    explore(SCHEDULES, || {
        let explored = Explored::new();
        let [one, other] = [(); 2].map(|()| explored.clone());
        on_threads(vec![
            Box::new(move || {
                one.leave(100..104);
                one.expect_replies(104, 1);
            }),
            Box::new(move || {
                other.leave(200..203);
                other.expect_replies(203, 1);
            }),
        ]);
        let requests = explored.pipe.0.lock().requests.clone();
        for (from, count) in [(100, 5), (200, 4)] {
            let own = requests
                .iter()
                .filter(|number| **number / 100 * 100 == from);
            let expected: Vec<u64> = (from..from + count).collect();
            assert!(own.eq(expected.iter()), "{requests:?}");
        }
        explored.session.end();
    });
}

#[test]
fn interleaved_requests_end_with_the_session() {
    explore(SCHEDULES, || {
        let explored = Explored::new();
        let [one, other, closer] = [(); 3].map(|()| explored.clone());
        let send = |explored: Explored, number| {
            Box::new(move || {
                let replied = shuttle::future::block_on(explored.send(number, true));
                let expected = Value::Int(i64::try_from(number).expect("small"));
                assert!(replied.is_none_or(|reply| reply == expected));
            })
        };
        on_threads(vec![
            send(one, 100),
            send(other, 200),
            Box::new(move || {
                if closer.pipe.0.lock().requests.is_empty() {
                    closer.session.end();
                } else {
                    close(&closer.pipe);
                }
            }),
        ]);
    });
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a panic of the executor");
    }
}

#[test]
fn interleaved_requests_get_replies_even_if_the_waker_of_another_panics() {
    explore(SCHEDULES / 10, || {
        let explored = Explored::new();
        let [broken, other] = [(); 2].map(|()| explored.clone());
        on_threads(vec![
            Box::new(move || {
                let waker = Waker::from(Arc::new(Panics));
                let mut request = Box::pin(broken.send(100, true));
                drop(request.as_mut().poll(&mut Context::from_waker(&waker)));
                broken.expect_replies(101, 1);
            }),
            Box::new(move || other.expect_replies(200, 2)),
        ]);
        explored.session.end();
    });
}
