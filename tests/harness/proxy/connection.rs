//! One connection through the proxy: frames are read, judged, queued and written, both ways.

use std::{
    collections::VecDeque,
    io, mem,
    sync::{Arc, Mutex},
    time::Instant,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{mpsc, watch},
    time,
};

use super::{
    Request,
    faults::{AfterLoss, Direction, Fate, Faults, Verdict},
};
use crate::resp::{self, Turn};

/// Frames between reader and writer, each with the time at which it is due. The queue has no bound: a delayed frame must not hold up
/// the reader, and a test sends little.
type Queue = mpsc::UnboundedSender<(Instant, Vec<u8>)>;
type Queued = mpsc::UnboundedReceiver<(Instant, Vec<u8>)>;

/// The name under which messages are counted, in place of a command's.
const PUSH: &str = "PUSH";

/// The number of bytes that are read at a time.
const BUFFER: usize = 16 << 10;

/// A message that no client has subscribed to.
const FLOOD: &[u8] = b">3\r\n$7\r\nmessage\r\n$5\r\nflood\r\n$4\r\nword\r\n";

pub(super) struct Connection {
    number: u64,
    faults: Arc<Faults>,
    fates: watch::Receiver<Fate>,
    // The commands that were passed on and are not answered yet, oldest first.
    in_flight: Mutex<VecDeque<String>>,
}

impl Connection {
    pub(super) fn new(faults: &Arc<Faults>) -> Self {
        let (number, fates) = faults.enter();
        Self {
            number,
            faults: Arc::clone(faults),
            fates,
            in_flight: Mutex::default(),
        }
    }

    /// Passes frames on until both ends are closed, one of them fails, or a fault resets the connection.
    pub(super) async fn run(&self, client: &mut TcpStream, server: &mut TcpStream) {
        client.set_nodelay(true).ok();
        server.set_nodelay(true).ok();
        let ended = {
            let (from_client, to_client) = client.split();
            let (from_server, to_server) = server.split();
            let (to_server_queue, for_server) = mpsc::unbounded_channel();
            let (to_client_queue, for_client) = mpsc::unbounded_channel();
            tokio::select! {
                () = self.until_fate(|fate| fate.reset) => Err(io::ErrorKind::ConnectionReset.into()),
                ended = async { tokio::try_join!(
                    self.read(from_client, Direction::Requests, to_server_queue),
                    self.write(for_server, to_server, Direction::Requests),
                    self.read(from_server, Direction::Replies, to_client_queue),
                    self.write(for_client, to_client, Direction::Replies),
                ) } => ended.map(drop),
            }
        };
        if ended.is_err() {
            // Closed like this, a socket sends RST instead of FIN.
            client.set_zero_linger().ok();
            server.set_zero_linger().ok();
        }
    }

    /// Waits while a black hole swallows this connection.
    pub(super) async fn thawed(&self) {
        self.until_fate(|fate| !fate.frozen).await;
    }

    async fn read(
        &self,
        mut from: ReadHalf<'_>,
        direction: Direction,
        queue: Queue,
    ) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(BUFFER);
        let mut silenced = false;
        // `None` until the first byte, which decides it.
        let mut is_tls = None;
        loop {
            self.thawed().await;
            tokio::select! {
                biased;
                () = self.until_fate(|fate| fate.frozen) => continue,
                count = from.read_buf(&mut buffer) => if count? == 0 { return Ok(()) },
            }
            let is_tls = *is_tls.get_or_insert_with(|| begins_as_tls(&buffer));
            while let Some(frame) = next_frame(&mut buffer, is_tls) {
                match self.judge(direction, &frame, silenced) {
                    Verdict::Forward { delay } => {
                        // After a half close the queue has no receiver, and the frame is lost.
                        queue.send((Instant::now() + delay, frame)).ok();
                    }
                    Verdict::Lose(AfterLoss::Continue) => {}
                    Verdict::Lose(AfterLoss::Silence) => silenced = true,
                    Verdict::Lose(AfterLoss::Reset) => {
                        return Err(io::ErrorKind::ConnectionReset.into());
                    }
                    Verdict::Cut => {
                        let half = frame[..frame.len() / 2].to_vec();
                        queue.send((Instant::now(), half)).ok();
                        // The writer ends its direction after the last frame.
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn write(
        &self,
        mut queued: Queued,
        mut to: WriteHalf<'_>,
        direction: Direction,
    ) -> io::Result<()> {
        let flood = FLOOD.repeat(1 << 10);
        loop {
            let next = tokio::select! {
                biased;
                () = self.until_fate(|fate| fate.half_closed == Some(direction)) => None,
                next = queued.recv() => next,
                () = self.until_fate(|fate| fate.flooded), if direction == Direction::Replies => {
                    to.write_all(&flood).await?;
                    continue;
                }
            };
            let Some((due, frame)) = next else {
                return to.shutdown().await;
            };
            time::sleep_until(due.into()).await;
            self.thawed().await;
            to.write_all(&frame).await?;
        }
    }

    fn judge(&self, direction: Direction, frame: &[u8], silenced: bool) -> Verdict {
        let command = match direction {
            Direction::Requests => self.record(frame),
            Direction::Replies => self.command_of(frame),
        };
        if silenced {
            return Verdict::Lose(AfterLoss::Silence);
        }
        let verdict = self.faults.judge(self.number, direction, &command);
        if direction == Direction::Requests && matches!(verdict, Verdict::Forward { .. }) {
            self.expect_replies(command, frame);
        }
        verdict
    }

    /// Logs a request and returns its command.
    fn record(&self, frame: &[u8]) -> String {
        let request = Request {
            at: Instant::now(),
            connection: self.number,
            words: resp::words(frame).unwrap_or_default(),
        };
        let command = request.command();
        self.faults.record(request);
        command
    }

    fn expect_replies(&self, command: String, frame: &[u8]) {
        // A subscription is answered once for each channel, any other command once.
        let replies = if command.ends_with("SUBSCRIBE") {
            let words = resp::words(frame).unwrap_or_default();
            words.len().saturating_sub(1).max(1)
        } else {
            1
        };
        let mut in_flight = self.in_flight.lock().expect("no poison");
        in_flight.extend(std::iter::repeat_n(command, replies));
    }

    /// Returns the command that a frame from the server answers.
    fn command_of(&self, frame: &[u8]) -> String {
        if resp::turn(frame) == Turn::Push {
            return PUSH.to_owned();
        }
        let mut in_flight = self.in_flight.lock().expect("no poison");
        in_flight.pop_front().unwrap_or_default()
    }

    async fn until_fate(&self, condition: impl Fn(&Fate) -> bool) {
        let mut fates = self.fates.clone();
        // An error means that the proxy was dropped, which also ends this task.
        fates.wait_for(|fate| condition(fate)).await.map(drop).ok();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.faults.leave(self.number);
    }
}

/// Returns whether the first byte is that of a TLS handshake or alert.
fn begins_as_tls(bytes: &[u8]) -> bool {
    matches!(bytes.first(), Some(0x15 | 0x16))
}

/// Removes the first complete frame from the buffer. TLS needs a flag of its own, since encrypted bytes may look like the beginning
/// of a frame that never ends.
fn next_frame(buffer: &mut Vec<u8>, is_tls: bool) -> Option<Vec<u8>> {
    if is_tls {
        let next = Vec::with_capacity(BUFFER);
        return (!buffer.is_empty()).then(|| mem::replace(buffer, next));
    }
    resp::take_frame(buffer)
}
