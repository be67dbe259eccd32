//! One connection: commands leave in the order in which they were queued, and replies come back in it.
//!
//! A caller appends its command behind the others, from any thread. [`Connection::flush`] writes the queued commands at once. A
//! caller calls it soon after it queued a command; the driver calls it for all others. The driver is a task on the manager's
//! thread. It reads, and runs the handler of each reply on the spot: a reply that had to wake one task to wake another would cost
//! more than the rest of a lock.

use std::{
    collections::VecDeque,
    fmt, io,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::sync::Notify;

use crate::{
    runtime::{
        catch_panic::catch_panic,
        clock::{Clock, Moment},
        mutex::Mutex,
        process::OriginProcess,
    },
    store::{
        in_flight::ConnectionId,
        redis::connection::wire::{
            resp::{self, Arg, Value},
            socket::Writing,
        },
    },
};

pub(crate) mod capabilities;
mod driver;
pub(crate) mod errors;
pub(crate) mod fencing_counter;
pub(crate) mod handshake;
mod once;
pub(crate) mod opening;
pub(crate) mod pub_sub;
pub(crate) mod reconnecting;
pub(crate) mod sentinel;
#[cfg(feature = "cluster")]
pub(crate) mod subscribed_channels;
pub(crate) mod wire;

pub(super) const CLOCK: Clock = Clock::Boot;

/// How many bytes may wait for the socket. Beyond it, the server is not reading, and nothing more is accepted.
const MOST_WAITING: usize = 1 << 17;
const MOST_BYTES: usize = 1 << 26;

/// Queued commands of this size are written at once.
const FLIGHT: usize = 1 << 12;

/// At this many commands in flight, writes are batched.
const CROWD: usize = 8;

/// A buffer larger than this is not kept for the next time.
const KEPT_SIZE: usize = 1 << 17;

/// What is done with the replies to some commands. Runs on the manager's thread; must not block, and holds no lock while it runs.
pub(super) type Handler = Box<dyn FnOnce(Result<Vec<Value>, NoReply>) + Send>;

/// Why there is no reply.
#[derive(Clone, Debug)]
pub(super) enum NoReply {
    /// The connection has ended, and why.
    Broken(Arc<str>),
    /// It has ended because the two ends do not accept each other.
    Unacceptable(Arc<str>),
    /// The bytes that came were not the protocol.
    Nonsense,
    /// Nothing came in time.
    Late,
    /// The command never left.
    NotSent,
}

impl NoReply {
    /// After reading failed. The system has no errors of this kind, and TLS has none of another that stays.
    fn of(error: &io::Error) -> Self {
        let why = error.to_string().into();
        match error.kind() {
            io::ErrorKind::InvalidData => Self::Unacceptable(why),
            _ => Self::Broken(why),
        }
    }
}

/// How messages are told from replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Messages {
    /// By their form, in the third version of the protocol.
    Resp3Push,
    /// By their first word: a connection of the second version that carries nothing else.
    Resp2Array,
}

pub(super) struct Connection {
    pub(super) id: ConnectionId,
    /// A forked child has a copy, and writes nothing: it shares the socket with its parent.
    origin: OriginProcess,
    writing: Writing,
    flow: Mutex<Flow>,
    /// Wakes the driver: there is something to write, or an end.
    kick: Notify,
    /// When bytes last came back, in nanoseconds of the clock.
    heard: AtomicU64,
    /// Whether a PING is in flight that decides whether the connection is dead.
    pub(super) probed: AtomicBool,
    messages: Messages,
    /// Whether replies come so soon that it pays to wait for them.
    is_near: Arc<AtomicBool>,
}

#[derive(Default)]
struct Flow {
    /// Commands that were queued and not written.
    out: Vec<u8>,
    waiting: VecDeque<PendingReply>,
    /// How many of the pending commands have their bytes in `out`.
    gathered: usize,
    /// Whether a thread is writing: it also writes what is queued meanwhile.
    is_written: bool,
    /// Whether the driver is calling handlers; it writes after the last one.
    is_giving: bool,
    /// Whether the system takes no more for now; the driver waits until it does.
    is_blocked: bool,
    /// Why writing is impossible, if it is.
    unwritable: Option<Arc<str>>,
    /// Since when no more commands are to be sent here.
    retired: Option<Moment>,
    ended: Option<NoReply>,
}

/// Commands that were queued together and have not all got their replies.
struct PendingReply {
    count: usize,
    answers: Vec<Value>,
    /// `None` after the handler was told that the reply is late. The reply is still to come, and is then dropped.
    then: Option<Handler>,
    /// When the driver tells the handler that it is late; `None` for callers that have timers of their own.
    until: Option<Moment>,
}

impl Connection {
    pub(super) fn new(
        id: ConnectionId,
        writing: Writing,
        messages: Messages,
        is_near: Arc<AtomicBool>,
    ) -> Self {
        Self {
            id,
            origin: OriginProcess::this_process(),
            writing,
            flow: Mutex::default(),
            kick: Notify::new(),
            heard: AtomicU64::new(CLOCK.now().as_nanos()),
            probed: AtomicBool::new(false),
            messages,
            is_near,
        }
    }

    /// Queues commands behind the others; `write` appends their bytes and returns how many they are, one at least.
    ///
    /// They leave with the next flush, or at once if nothing is in flight or much is queued: the server works on it while more is
    /// queued. If the connection has ended or is full, the handler is returned.
    pub(super) fn put(
        &self,
        then: Handler,
        until: Option<Moment>,
        write: impl FnOnce(&mut Vec<u8>) -> usize,
    ) -> Result<(), Handler> {
        let mut flow = self.lock();
        let full = flow.waiting.len() >= MOST_WAITING || flow.out.len() >= MOST_BYTES;
        if full || flow.ended.is_some() {
            return Err(then);
        }
        // Batching has no advantage then.
        let is_idle = flow.waiting.is_empty() && !flow.is_giving;
        let count = write(&mut flow.out);
        flow.waiting.push_back(PendingReply {
            count,
            answers: Vec::with_capacity(count),
            then: Some(then),
            until,
        });
        flow.gathered += 1;
        if is_idle || flow.out.len() >= FLIGHT {
            self.write_out(flow);
        }
        Ok(())
    }

    /// Sends one command and waits for its reply, without a time-out of its own. Only for the manager's thread.
    ///
    /// Dropping the future does not take the command back.
    pub(super) async fn ask(&self, words: &[Arg<'_>]) -> Result<Value, NoReply> {
        let answers = self.ask_all(&[words]).await?;
        answers.into_iter().next().ok_or(NoReply::Nonsense)
    }

    /// The same for several commands in one message, one at least.
    pub(super) async fn ask_all(&self, commands: &[&[Arg<'_>]]) -> Result<Vec<Value>, NoReply> {
        let (sender, answers) = tokio::sync::oneshot::channel();
        let handler: Handler = Box::new(move |answers| drop(sender.send(answers)));
        let put = self.put(handler, None, |out| {
            for words in commands {
                resp::write_command(out, &[words]);
            }
            commands.len()
        });
        if put.is_err() {
            return Err(self.end_or(NoReply::NotSent));
        }
        self.nudge();
        answers
            .await
            .unwrap_or_else(|_| Err(self.end_or(NoReply::Late)))
    }

    /// Makes the driver write the queued commands, together with those that others queue before it runs.
    pub(super) fn nudge(&self) {
        self.kick.notify_one();
    }

    /// Writes the queued commands, as far as the system takes them. Never waits; callable from any thread.
    ///
    /// It does not write while handlers are being called: the first one may run before the other tasks are woken, and would send
    /// its next command alone. Nor does it write while many commands are in flight to a server that is near, and fewer are
    /// queued: the replies come soon, and then more will be queued. In both cases the driver writes, after the replies.
    pub(super) fn flush(&self) {
        let flow = self.lock();
        let on_their_way = flow.waiting.len().saturating_sub(flow.gathered);
        let too_few = on_their_way >= CROWD
            && flow.gathered < on_their_way
            && self.is_near.load(Ordering::Relaxed);
        if !flow.is_giving && !too_few {
            self.write_out(flow);
        }
    }

    fn write_out<'a>(&'a self, mut flow: MutexGuard<'a, Flow>) {
        // Ends when nothing was queued while the last of it was written: each round writes something.
        while !flow.is_written && !flow.is_blocked && !flow.out.is_empty() && flow.ended.is_none() {
            let mut bytes = std::mem::take(&mut flow.out);
            flow.is_written = true;
            flow.gathered = 0;
            // Without the lock: a system call takes longer than all that other threads do under it.
            drop(flow);
            let (written, result) = self.write(&bytes);
            flow = self.lock();
            flow.is_written = false;
            if let Err(error) = result {
                bytes.drain(..written);
                bytes.append(&mut flow.out);
                flow.out = bytes;
                // The driver waits until there is room, or ends the connection.
                flow.is_blocked = true;
                if error.kind() != io::ErrorKind::WouldBlock {
                    flow.unwritable = Some(error.to_string().into());
                }
                self.kick.notify_one();
            } else if flow.out.is_empty() && bytes.capacity() <= KEPT_SIZE {
                bytes.clear();
                flow.out = bytes;
            }
        }
    }

    /// Returns how much was written, and `WouldBlock` if the system did not take the rest, or the TLS records made of it.
    fn write(&self, bytes: &[u8]) -> (usize, io::Result<()>) {
        if !self.origin.is_here() {
            return (bytes.len(), Ok(()));
        }
        let mut written = 0;
        while written < bytes.len() {
            match self.writing.try_write(&bytes[written..]) {
                Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (written, Err(error)),
            }
        }
        (written, self.writing.flush())
    }

    /// Sends nothing more here. It closes when all replies have come, or after some time.
    pub(super) fn retire(&self) {
        self.lock().retired.get_or_insert_with(|| CLOCK.now());
        self.kick.notify_one();
    }

    /// Notes that bytes came back.
    pub(super) fn hear(&self) {
        self.heard
            .fetch_max(CLOCK.now().as_nanos(), Ordering::AcqRel);
    }

    pub(super) fn heard_since(&self, moment: Moment) -> bool {
        self.heard.load(Ordering::Acquire) >= moment.as_nanos()
    }

    fn is_blocked(&self) -> bool {
        self.lock().is_blocked
    }

    /// Whether bytes that count as written were not all taken by the system.
    #[cfg(all(test, feature = "tls"))]
    pub(super) fn is_stuck_behind_the_system(&self) -> bool {
        let flow = self.lock();
        flow.is_blocked && flow.out.is_empty() && flow.unwritable.is_none()
    }

    fn unwritable(&self) -> Option<Arc<str>> {
        self.lock().unwritable.clone()
    }

    pub(super) fn end(&self, why: &NoReply) {
        let waiting = {
            let mut flow = self.lock();
            flow.ended = Some(why.clone());
            flow.out = Vec::new();
            flow.gathered = 0;
            std::mem::take(&mut flow.waiting)
        };
        for then in waiting.into_iter().filter_map(|waiting| waiting.then) {
            call(then, Err(why.clone()));
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    /// The reason of its end, or, if it has not ended, this one.
    fn end_or(&self, other: NoReply) -> NoReply {
        self.lock().ended.clone().unwrap_or(other)
    }

    fn lock(&self) -> MutexGuard<'_, Flow> {
        self.flow.lock()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

fn call(then: Handler, answers: Result<Vec<Value>, NoReply>) {
    catch_panic(|| then(answers));
}

pub(super) fn is(words: &[Value], first: &[u8]) -> bool {
    match words.first() {
        Some(Value::BulkString(word)) => word == first,
        Some(Value::SimpleString(word)) => word.as_bytes() == first,
        _ => false,
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::{sync::Arc, thread, time::Duration};

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::UnixStream,
    };

    use super::*;
    use crate::store::redis::connection::pub_sub::PubSubDispatch;

    /// A connection with a driver, and the server's end of it.
    fn pair() -> (Arc<Connection>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let (reading, writing) = ours.into_split();
        let connection = Arc::new(Connection::new(
            ConnectionId::new(1),
            Writing::Unix(writing),
            Messages::Resp3Push,
            Arc::new(AtomicBool::new(true)),
        ));
        let driven = connection.clone();
        drop(tokio::spawn(async move {
            let dispatch = PubSubDispatch::new("grants".into(), "".into(), Arc::default());
            let patience = Duration::from_secs(10);
            let why = driven
                .drive(Box::new(reading), dispatch, patience, || {})
                .await;
            driven.end(&why);
        }));
        (connection, theirs)
    }

    #[tokio::test]
    async fn commands_of_many_threads_leave_whole_and_in_order_however_little_the_system_takes() {
        const THREADS: usize = 4;
        const EACH: usize = 2_000;
        let (connection, mut server) = pair();
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let connection = connection.clone();
                thread::spawn(move || {
                    for count in 0..EACH {
                        let handler: Handler = Box::new(|_| {});
                        let put = connection.put(handler, None, |out| {
                            let line = format!("{number} {count} {:600}|", "");
                            out.extend_from_slice(line.as_bytes());
                            1
                        });
                        assert!(put.is_ok());
                        connection.flush();
                    }
                })
            })
            .collect();
        let mut next = [0; THREADS];
        let mut rest = Vec::new();
        while next.iter().sum::<usize>() < THREADS * EACH {
            let count = server.read_buf(&mut rest).await.expect("it is open");
            assert!(count > 0, "it ended early: {next:?}");
            while let Some(end) = rest.iter().position(|byte| *byte == b'|') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                let line = String::from_utf8(line).expect("text");
                let mut words = line.split(' ');
                let mut number = || words.next().and_then(|word| word.parse::<usize>().ok());
                let (Some(thread), Some(count)) = (number(), number()) else {
                    panic!("torn: {line}");
                };
                assert_eq!(next[thread], count, "of thread {thread}");
                assert_eq!(line.len(), format!("{thread} {count} {:600}|", "").len());
                next[thread] += 1;
                server.write_all(b":1\r\n").await.expect("it is open");
            }
        }
        for thread in threads {
            thread.join().expect("no panic");
        }
    }

    #[tokio::test]
    async fn each_answer_goes_to_the_oldest_command_and_one_too_many_ends_the_connection() {
        let (connection, mut server) = pair();
        let (first, second) = tokio::join!(connection.ask(&[Arg::Text("ONE")]), async {
            let asked = connection.ask(&[Arg::Text("TWO")]);
            let (asked, ()) = tokio::join!(asked, async {
                server
                    .write_all(b":1\r\n>1\r\n+x\r\n:2\r\n")
                    .await
                    .expect("open");
            });
            asked
        });
        assert!(matches!(first, Ok(Value::Int(1))), "{first:?}");
        assert!(matches!(second, Ok(Value::Int(2))), "{second:?}");
        server.write_all(b":3\r\n").await.expect("open");
        while !connection.has_ended() {
            tokio::task::yield_now().await;
        }
        let ended = connection.ask(&[Arg::Text("THREE")]).await;
        assert!(matches!(ended, Err(NoReply::Nonsense)), "{ended:?}");
    }
}
