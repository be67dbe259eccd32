//! The stream to a server: made with what a lock needs of it, and written to from any thread.

use std::{io, time::Duration};

use socket2::{SockRef, TcpKeepalive};
#[cfg(unix)]
use tokio::net::{UnixStream, unix};
use tokio::{
    io::AsyncRead,
    net::{TcpStream, tcp},
};

use crate::backend::redis::address::{Address, Place};

/// The half that is read, by one task.
pub(super) type Reading = Box<dyn AsyncRead + Send + Unpin>;

/// The half that is written, by whoever has something to send.
#[derive(Debug)]
pub(super) enum Writing {
    Tcp(tcp::OwnedWriteHalf),
    #[cfg(unix)]
    Unix(unix::OwnedWriteHalf),
}

/// Connects. A name is looked up anew each time.
pub(super) async fn connect(
    address: &Address,
    command_timeout: Duration,
) -> io::Result<(Reading, Writing)> {
    match address.place() {
        Place::Tcp { host, port } => {
            let stream = TcpStream::connect((&**host, *port)).await?;
            set_up(&stream, command_timeout)?;
            let (reading, writing) = stream.into_split();
            Ok((Box::new(reading), Writing::Tcp(writing)))
        }
        #[cfg(unix)]
        Place::Unix(path) => {
            let (reading, writing) = UnixStream::connect(path).await?.into_split();
            Ok((Box::new(reading), Writing::Unix(writing)))
        }
        #[cfg(not(unix))]
        Place::Unix(_) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "there are no unix sockets on this system",
        )),
    }
}

/// No Nagle delay, since each command is one small write. A peer that is gone is noticed by the kernel too: while idle
/// by keepalive, with bytes on their way by the user time-out.
fn set_up(stream: &TcpStream, command_timeout: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(15)))?;
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    socket.set_tcp_user_timeout(Some(command_timeout * 2))?;
    #[cfg(not(any(target_os = "android", target_os = "fuchsia", target_os = "linux")))]
    let _unused = command_timeout;
    Ok(())
}

impl Writing {
    /// Writes what the system takes at once; never waits.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(half) => half.try_write(bytes),
            #[cfg(unix)]
            Self::Unix(half) => half.try_write(bytes),
        }
    }

    /// Waits until the system takes more.
    pub(super) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(half) => half.writable().await,
            #[cfg(unix)]
            Self::Unix(half) => half.writable().await,
        }
    }
}
