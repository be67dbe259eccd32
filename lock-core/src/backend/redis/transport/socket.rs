//! The socket of a session, which can move from the reactor of one runtime to that of another.
//!
//! A server may say why it ends a connection, for example by a TLS alert, before it closes it. A request that is sent after that
//! fails with nothing more than "broken pipe", while the reason is still waiting to be read. So a write never fails here: its
//! error is stored, nothing more is written, and the reader gets the error after all bytes that have arrived.

use std::{
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

#[cfg(unix)]
use tokio::net::UnixStream;

/// `MSG_NOSIGNAL`, so that a program that does not ignore `SIGPIPE` is not killed when its connection ends.
#[cfg(any(target_os = "android", target_os = "linux"))]
const NO_SIGNAL: std::ffi::c_int = 0x4000;
#[cfg(not(any(target_os = "android", target_os = "linux")))]
const NO_SIGNAL: std::ffi::c_int = 0;

/// A socket that is registered with the reactor of one runtime. Every writer uses the waker of the task that reads.
#[derive(Debug)]
pub(crate) struct Socket {
    kind: Kind,
    /// The reason why a write failed. Nothing is written afterwards.
    failed: Option<io::Error>,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl From<Kind> for Socket {
    fn from(kind: Kind) -> Self {
        Self { kind, failed: None }
    }
}

#[cfg(unix)]
impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Self {
        Kind::Unix(stream).into()
    }
}

impl Socket {
    /// Connects. A host name is resolved each time. The kernel detects a dead peer by keepalive on an idle connection, and by
    /// the user time-out with bytes in flight.
    pub(super) async fn connect(
        host: &str,
        port: u16,
        command_timeout: Duration,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect((host, port)).await?;
        // Each command is one small write.
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(15)))?;
        #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
        socket.set_tcp_user_timeout(Some(command_timeout * 2))?;
        #[cfg(not(any(target_os = "android", target_os = "fuchsia", target_os = "linux")))]
        let _unused = command_timeout;
        Ok(Kind::Tcp(stream).into())
    }

    /// Registers the socket with the reactor of the runtime that this thread has entered.
    ///
    /// # Panics
    ///
    /// Panics if that runtime has no reactor. The socket is then still registered where it was.
    pub(super) fn register_here(&mut self) -> io::Result<()> {
        // A descriptor can be removed from a reactor that is shutting down only by closing it, so this registers a duplicate.
        let duplicate = self.all().try_clone()?;
        self.kind = match self.kind {
            Kind::Tcp(_) => Kind::Tcp(TcpStream::from_std(duplicate.into())?),
            #[cfg(unix)]
            Kind::Unix(_) => Kind::Unix(UnixStream::from_std(duplicate.into())?),
        };
        Ok(())
    }

    /// Returns `true` if there are bytes to read, or the socket has ended.
    pub(super) fn is_readable(&self) -> bool {
        self.failed.is_some() || self.has_arrived()
    }

    /// Returns `true` if the kernel has bytes to read, or the end of the stream. Tokio may not know yet, since it relies on its reactor.
    fn has_arrived(&self) -> bool {
        let peeked = self.all().peek(&mut [MaybeUninit::uninit()]);
        !matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Returns the operations that sockets of all kinds have.
    fn all(&self) -> SockRef<'_> {
        match &self.kind {
            Kind::Tcp(stream) => SockRef::from(stream),
            #[cfg(unix)]
            Kind::Unix(stream) => SockRef::from(stream),
        }
    }

    fn poll_send(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // Tokio considers a newly registered socket not ready until its reactor has run, which may never happen. So the reactor
        // is asked only if the kernel's buffer is full.
        match self.all().send_with_flags(bytes, NO_SIGNAL) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            sent => return Poll::Ready(sent),
        }
        match &mut self.kind {
            Kind::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            #[cfg(unix)]
            Kind::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let socket = self.get_mut();
        let read = match &mut socket.kind {
            Kind::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            #[cfg(unix)]
            Kind::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        // If the kernel has more, the reactor wakes this task for it.
        if read.is_pending() && socket.failed.is_some() && !socket.has_arrived() {
            return Poll::Ready(socket.failed.take().map_or(Ok(()), Err));
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let socket = self.get_mut();
        if socket.failed.is_none() {
            match socket.poll_send(context, bytes) {
                Poll::Ready(Err(why)) => socket.failed = Some(why),
                sent => return sent,
            }
            // Wakes the reader, which may be idle, so that it returns the error.
            context.waker().wake_by_ref();
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().kind {
            Kind::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            #[cfg(unix)]
            Kind::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::net::Shutdown;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn bytes_that_arrived_before_a_write_failed_are_read_first() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        let mut ours = Socket::from(ours);
        let said = theirs.write_all(b"-ERR go away\r\n").await;
        said.expect("we have room");
        drop(theirs);
        for _ in 0..2 {
            let written = ours.write_all(b"PING").await;
            written.expect("the reason is read first");
        }
        let mut why = String::new();
        let read = ours.read_to_string(&mut why).await;
        read.expect("the reason, and the end");
        assert_eq!(why, "-ERR go away\r\n");
    }

    #[tokio::test]
    async fn a_write_that_failed_is_reported_once_nothing_is_left_to_read() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        let mut ours = Socket::from(ours);
        theirs.write_all(b"+").await.expect("we have room");
        // The peer accepts nothing, but does not close the socket either.
        let deaf = SockRef::from(&theirs).shutdown(Shutdown::Read);
        deaf.expect("the socket is open");
        ours.write_all(b"PING")
            .await
            .expect("the error goes to the reader");
        assert!(ours.is_readable());
        assert_eq!(
            ours.read_u8()
                .await
                .expect("the byte arrived before the error"),
            b'+'
        );
        let why = ours.read_u8().await.expect_err("the write failed");
        assert_eq!(why.kind(), io::ErrorKind::BrokenPipe);
    }
}
