//! The socket of a session, which can move from the reactor of one runtime to that of another.

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

/// `MSG_NOSIGNAL`: a program that does not ignore `SIGPIPE` is not to end with its connection.
#[cfg(any(target_os = "android", target_os = "linux"))]
const NO_SIGNAL: std::ffi::c_int = 0x4000;
#[cfg(not(any(target_os = "android", target_os = "linux")))]
const NO_SIGNAL: std::ffi::c_int = 0;

/// A socket that is registered with the reactor of one runtime.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Socket {
    /// Connects. A host name is resolved each time. The kernel notices a dead peer: on an idle connection by keepalive, with bytes in
    /// flight by the user time-out.
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
        Ok(Self::Tcp(stream))
    }

    /// Registers the socket with the reactor of the runtime that this thread is inside of.
    ///
    /// # Panics
    ///
    /// If that runtime has no reactor. The socket is still registered where it was.
    pub(super) fn register_here(&mut self) -> io::Result<()> {
        // A descriptor can leave a reactor that is shutting down only by being closed, so this registers a duplicate.
        let duplicate = self.all().try_clone()?;
        *self = match self {
            Self::Tcp(_) => Self::Tcp(TcpStream::from_std(duplicate.into())?),
            #[cfg(unix)]
            Self::Unix(_) => Self::Unix(UnixStream::from_std(duplicate.into())?),
        };
        Ok(())
    }

    /// Whether there is something to read, or the socket has ended.
    pub(super) fn is_readable(&self) -> bool {
        let peeked = self.all().peek(&mut [MaybeUninit::uninit()]);
        !matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// What sockets of all kinds can do.
    fn all(&self) -> SockRef<'_> {
        match self {
            Self::Tcp(stream) => SockRef::from(stream),
            #[cfg(unix)]
            Self::Unix(stream) => SockRef::from(stream),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // Tokio considers a socket that was just registered not ready before its reactor has run, which may never happen. So the
        // reactor is asked only if the kernel has no room.
        match self.all().send_with_flags(bytes, NO_SIGNAL) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            sent => return Poll::Ready(sent),
        }
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
