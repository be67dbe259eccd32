//! A stream through TLS that is written to from any thread, and never waits.
//!
//! One mutex guards the TLS state of the stream. No thread waits for anything while it holds the mutex: bytes are encrypted or
//! decrypted, and handed to the system as far as it takes them at once. So the reader and a writer delay each other for the time
//! of one batch, no longer.
//!
//! **Order.** Bytes are encrypted in the order in which they are given. Encrypted bytes go to the system under the same lock,
//! oldest first. Several threads may write: their bytes stay whole and in order as long as each thread gives all of its own
//! before the next one does, which the connection ensures.
//!
//! **What the system does not take.** TLS has then accepted bytes that are not sent. They count as written, since giving them
//! again would send them twice. [`Session::flush`] reports that something is left, and the connection counts as blocked until
//! [`Session::writable`] has written it. Until then nothing more is accepted, so at most one record is left, and what the reader
//! had to add.
//!
//! **Wake-ups.** Only the driver waits: reading, by the waker of its own poll, and in `writable`. Another thread registers no
//! waker. It notifies the driver by the connection's kick, which is stored if the driver is not waiting just then. What TLS
//! itself sends (a reply to a change of keys, an alert) is made while reading, under the lock. If the system does not take it at
//! once, it leaves with the next write; no thread waits for it before that.

use std::{
    fmt,
    io::{self, BufRead, IoSlice, Write},
    ops::Range,
    pin::Pin,
    sync::{Arc, MutexGuard},
    task::{Context, Poll, ready},
};

use rustls::{AlertDescription, CertificateError, ClientConnection, Error};
use tokio::{
    io::{AsyncRead, ReadBuf},
    net::{TcpStream, tcp},
};

use crate::runtime::mutex::Mutex;
use crate::tls::Trust;

/// Accepted at a time: what one record of TLS holds.
const RECORD: usize = 1 << 14;

/// How much is read from the system at a time.
const READ_SIZE: usize = 1 << 14;

/// What both halves share.
pub(crate) struct Session {
    tls: Mutex<ClientConnection>,
    socket: tcp::OwnedWriteHalf,
}

/// The half that is read.
pub(crate) struct Deciphered {
    session: Arc<Session>,
    socket: tcp::OwnedReadHalf,
    /// From the system; TLS has not processed what is in `fresh` yet.
    buffer: Box<[u8]>,
    fresh: Range<usize>,
    /// The error, while the bytes before it are still being handed out.
    failure: Option<io::Error>,
}

/// Does the TLS handshake on a new stream. Its caller bounds the time.
///
/// # Errors
///
/// Of the kind `InvalidData` if a retry cannot succeed: the two do not accept each other, or the peer does not speak TLS.
///
/// # Cancel safety
///
/// Dropping the future closes the stream.
pub(crate) async fn shake_hands(
    stream: TcpStream,
    trust: &Trust,
    host: &str,
) -> io::Result<(Deciphered, Arc<Session>)> {
    let expected = trust
        .expected_at(host)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    let tls = ClientConnection::new(trust.config.clone(), expected)
        .map_err(|error| unacceptable(&error))?;
    let (reading, socket) = stream.into_split();
    let session = Arc::new(Session {
        tls: Mutex::new(tls),
        socket,
    });
    let mut reading = Deciphered {
        session: session.clone(),
        socket: reading,
        buffer: vec![0; READ_SIZE].into(),
        fresh: 0..0,
        failure: None,
    };
    // A handshake has an end, and each round waits for one more piece of it.
    loop {
        if session.flush().is_err() {
            session.writable().await?;
        }
        if !session.lock().is_handshaking() {
            return Ok((reading, session));
        }
        if reading.fresh.is_empty() && std::future::poll_fn(|cx| reading.poll_fill(cx)).await? == 0
        {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the server closed the connection while TLS was agreed on: is it a port for TLS?",
            ));
        }
        reading.take_in(&mut session.lock())?;
    }
}

impl Session {
    /// Accepts bytes and writes what the system takes at once; never waits.
    ///
    /// Accepts none before all that was accepted earlier has left. What it accepts may be left here: see
    /// [`flush`](Self::flush).
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut tls = self.lock();
        self.push(&mut tls)?;
        let accepted = tls.writer().write(&bytes[..bytes.len().min(RECORD)])?;
        match self.push(&mut tls) {
            // It is accepted all the same.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(accepted),
            pushed => pushed.map(|()| accepted),
        }
    }

    /// Writes what was left, as far as the system takes it; `WouldBlock` if that is not all.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.push(&mut self.lock())
    }

    /// Waits until nothing is left and the system takes more.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        loop {
            self.socket.writable().await?;
            match self.flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                flushed => return flushed,
            }
        }
    }

    fn push(&self, tls: &mut ClientConnection) -> io::Result<()> {
        while tls.wants_write() {
            match tls.write_tls(&mut Socket(&self.socket)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, ClientConnection> {
        self.tls.lock()
    }
}

impl Drop for Session {
    /// Sends `close_notify`, so that the server sees a regular end and not a connection that was cut.
    fn drop(&mut self) {
        self.lock().send_close_notify();
        // The connection may be gone already.
        drop(self.flush());
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Deciphered {
    /// Reads from the system; only when TLS has processed all that was read before. Returns how much; zero at the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(&mut self.buffer);
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buffer))?;
        self.fresh = 0..buffer.filled().len();
        Poll::Ready(Ok(self.fresh.len()))
    }

    /// Gives TLS a part of `fresh`, which must not be empty.
    fn take_in(&mut self, tls: &mut ClientConnection) -> io::Result<()> {
        let mut fresh = &self.buffer[self.fresh.clone()];
        self.fresh.start += tls.read_tls(&mut fresh)?;
        let processed = tls.process_new_packets();
        if tls.wants_write() {
            // An alert, or a reply to a change of keys. What does not leave now leaves with the next write.
            drop(self.session.push(tls));
        }
        processed.map(drop).map_err(|error| unacceptable(&error))
    }

    /// Decrypts `fresh` into `out`, as much as it has room for. Returns whether the server has sent `close_notify`.
    fn decipher(&mut self, out: &mut ReadBuf<'_>) -> bool {
        let session = self.session.clone();
        let mut tls = session.lock();
        // Each round takes something from TLS, or gives something to it.
        while out.remaining() > 0 {
            let mut reader = tls.reader();
            match reader.fill_buf() {
                Ok([]) => return true,
                Ok(chunk) => {
                    let count = chunk.len().min(out.remaining());
                    out.put_slice(&chunk[..count]);
                    reader.consume(count);
                }
                Err(_) if self.failure.is_some() || self.fresh.is_empty() => break,
                // TLS has no more plaintext, and may have been given more than one message before the wrong one.
                Err(_) => self.failure = self.take_in(&mut tls).err(),
            }
        }
        false
    }
}

impl AsyncRead for Deciphered {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = out.filled().len();
        loop {
            let has_ended = this.decipher(out);
            if has_ended || out.filled().len() > before || out.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            if let Some(failure) = this.failure.take() {
                return Poll::Ready(Err(failure));
            }
            if ready!(this.poll_fill(cx))? == 0 {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the connection was cut: it ended without the goodbye of TLS",
                )));
            }
        }
    }
}

/// The system's side, for TLS to write to.
struct Socket<'a>(&'a tcp::OwnedWriteHalf);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn unacceptable(error: &Error) -> io::Error {
    let kind = match error {
        // Only these alerts are known to be transient.
        Error::AlertReceived(AlertDescription::InternalError | AlertDescription::UserCanceled) => {
            io::ErrorKind::ConnectionAborted
        }
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, told(error))
}

fn told(error: &Error) -> String {
    match error {
        // The second one occurs if another authority has the same name: for example, if it was made anew.
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => {
            "its certificate was signed by nobody who is trusted here: if that is a private authority, give it by \
             `Tls::authority`"
                .to_owned()
        }
        Error::InvalidCertificate(why) => format!("its certificate is refused: {why}"),
        Error::AlertReceived(alert) if is_about_us(*alert) => {
            format!("it refuses our certificate, or that we show none (see `Tls::client_certificate`): {alert:?}")
        }
        Error::InvalidMessage(_) => {
            "what it sends is not TLS: is it a port for TLS? One without has a `redis://` url".to_owned()
        }
        other => format!("TLS failed: {other}"),
    }
}

/// The alerts of servers that do not accept a client's certificate: the last but one if it has none, in TLS 1.2, and the last one
/// if it is from another authority of the same name.
fn is_about_us(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::CertificateRequired
            | AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::HandshakeFailure
            | AlertDescription::DecryptError
    )
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        net::{TcpListener, TcpStream as Blocking},
        sync::{atomic::AtomicBool, mpsc},
        thread::{self, JoinHandle},
        time::Duration,
    };

    use rustls::{
        ServerConfig, ServerConnection, StreamOwned, crypto::ring, pki_types::PrivateKeyDer,
    };
    use socket2::SockRef;

    use super::*;
    use crate::{
        store::{
            in_flight::ConnectionId,
            redis::connection::{
                Connection, Handler, Messages, NoReply,
                pub_sub::PubSubDispatch,
                wire::{
                    resp::{Arg, Value},
                    socket::Writing,
                },
            },
        },
        tls::Tls,
    };

    /// Of each end, so that the system takes little at a time.
    const SMALL: usize = 4_096;

    /// Far beyond what any step takes here.
    const HANG: Duration = Duration::from_secs(30);

    type RedisServer = StreamOwned<ServerConnection, Blocking>;

    /// A connection with a driver, and a thread that has the server's end of it.
    async fn pair<T: Send + 'static>(
        serve: impl FnOnce(RedisServer) -> T + Send + 'static,
    ) -> (Arc<Connection>, JoinHandle<T>) {
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("valid");
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).expect("a key");
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .expect("they belong together");
        // They would make the reader write what is left, too, and hide that no other task does.
        config.send_tls13_tickets = 0;
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        // Accepted sockets inherit it.
        SockRef::from(&listener)
            .set_recv_buffer_size(SMALL)
            .expect("a socket");
        let address = listener.local_addr().expect("it listens");
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            stream.set_read_timeout(Some(HANG)).expect("a socket");
            let tls = ServerConnection::new(Arc::new(config)).expect("valid");
            let mut server = StreamOwned::new(tls, stream);
            server
                .conn
                .complete_io(&mut server.sock)
                .expect("a handshake");
            serve(server)
        });
        let stream = TcpStream::connect(address).await.expect("it listens");
        SockRef::from(&stream)
            .set_send_buffer_size(SMALL)
            .expect("a socket");
        let trust = Tls::new().authority(cert.pem()).read().expect("valid");
        let (reading, session) = shake_hands(stream, &trust, "localhost")
            .await
            .expect("they trust each other");
        let connection = Arc::new(Connection::new(
            ConnectionId::new(1),
            Writing::Tls(session),
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
        (connection, server)
    }

    async fn ended<T: Send + 'static>(server: JoinHandle<T>) -> T {
        tokio::task::spawn_blocking(|| server.join())
            .await
            .expect("no panic")
            .expect("no panic of the server")
    }

    fn give(connection: &Connection, bytes: &[u8]) {
        let handler: Handler = Box::new(|_| {});
        let put = connection.put(handler, None, |out| {
            out.extend_from_slice(bytes);
            1
        });
        assert!(put.is_ok());
    }

    #[tokio::test]
    async fn what_tls_accepted_and_the_system_did_not_take_leaves_when_it_can() {
        const SIZE: usize = 8_000;
        let (go, told) = mpsc::channel();
        let (connection, server) = pair(move |mut server| {
            let count: u8 = told.recv().expect("the test goes on");
            let mut bytes = vec![0; usize::from(count) * SIZE];
            server.read_exact(&mut bytes).expect("all of it comes");
            bytes
        })
        .await;
        // The driver does not run until the test waits, so no other task writes what is left.
        let mut count = 0;
        while !connection.is_stuck_behind_the_system() {
            give(&connection, &[count; SIZE]);
            count = count
                .checked_add(1)
                .expect("the system takes less than this");
        }
        go.send(count).expect("the server waits for it");
        let bytes = ended(server).await;
        for (number, bytes) in (0..count).zip(bytes.chunks(SIZE)) {
            assert!(
                bytes.iter().all(|byte| *byte == number),
                "{number} is not whole"
            );
        }
    }

    #[tokio::test]
    async fn commands_of_many_threads_leave_whole_and_in_order_however_little_the_system_takes() {
        const THREADS: usize = 4;
        const EACH: usize = 2_000;
        let line = |thread: usize, count: usize| format!("{thread} {count} {:600}|", "");
        let (connection, server) = pair(move |mut server| {
            let mut next = [0; THREADS];
            let mut rest = Vec::new();
            while next.iter().sum::<usize>() < THREADS * EACH {
                let mut piece = [0; 1 << 14];
                let size = server.read(&mut piece).expect("more comes");
                assert!(size > 0, "it ended early: {next:?}");
                rest.extend_from_slice(&piece[..size]);
                while let Some(end) = rest.iter().position(|byte| *byte == b'|') {
                    let one: Vec<u8> = rest.drain(..=end).collect();
                    let thread = usize::from(one[0] - b'0');
                    assert_eq!(one, line(thread, next[thread]).as_bytes());
                    next[thread] += 1;
                    server.write_all(b":1\r\n").expect("it is open");
                }
            }
        })
        .await;
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let connection = connection.clone();
                thread::spawn(move || {
                    for count in 0..EACH {
                        give(&connection, line(thread, count).as_bytes());
                        connection.flush();
                    }
                })
            })
            .collect();
        ended(server).await;
        for thread in threads {
            thread.join().expect("no panic");
        }
    }

    #[tokio::test]
    async fn an_answer_of_many_records_arrives_whole() {
        const SIZE: usize = 1_000_000;
        let (connection, server) = pair(|mut server| {
            let mut answer = format!("${SIZE}\r\n").into_bytes();
            answer.extend((0..SIZE).map(|endpoint| b"0123456"[endpoint % 7]));
            answer.extend(b"\r\n");
            server.write_all(&answer).expect("it is open");
            server.flush().expect("it is open");
            server
        })
        .await;
        let answer = connection.ask(&[Arg::Text("GET")]).await;
        let Ok(Value::BulkString(bytes)) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(bytes.len(), SIZE);
        assert!((0..SIZE).all(|endpoint| bytes[endpoint] == b"0123456"[endpoint % 7]));
        ended(server).await;
    }

    #[tokio::test]
    async fn an_answer_before_something_that_is_not_tls_is_still_an_answer() {
        let (connection, server) = pair(|mut server| {
            server
                .conn
                .writer()
                .write_all(b":1\r\n")
                .expect("it is open");
            let mut together = Vec::new();
            while server.conn.wants_write() {
                server.conn.write_tls(&mut together).expect("to memory");
            }
            together.extend(b"-ERR this is in the clear\r\n");
            server.sock.write_all(&together).expect("it is open");
            server
        })
        .await;
        let answer = connection.ask(&[Arg::Text("GET")]).await;
        assert!(matches!(answer, Ok(Value::Int(1))), "{answer:?}");
        let next = connection.ask(&[Arg::Text("GET")]).await;
        assert!(
            matches!(&next, Err(NoReply::Unacceptable(why)) if why.contains("is not TLS")),
            "{next:?}"
        );
        ended(server).await;
    }

    #[tokio::test]
    async fn it_says_goodbye_itself() {
        let (connection, server) = pair(|mut server| server.read(&mut [0])).await;
        connection.retire();
        drop(connection);
        let read = ended(server).await;
        assert!(matches!(read, Ok(0)), "{read:?}");
    }

    #[tokio::test]
    async fn an_end_with_a_goodbye_is_told_from_one_without() {
        let (connection, server) = pair(|mut server| {
            server.conn.send_close_notify();
            server.flush().expect("it is open");
            server
        })
        .await;
        let told = connection.ask(&[Arg::Text("GET")]).await;
        assert!(
            matches!(&told, Err(NoReply::Broken(why)) if **why == *"the server closed the connection"),
            "{told:?}"
        );
        drop(ended(server).await);
        let (connection, server) = pair(|server| {
            server
                .sock
                .shutdown(std::net::Shutdown::Write)
                .expect("it is open");
            server
        })
        .await;
        let told = connection.ask(&[Arg::Text("GET")]).await;
        assert!(
            matches!(&told, Err(NoReply::Broken(why)) if why.contains("was cut")),
            "{told:?}"
        );
        drop(ended(server).await);
    }
}
