//! The stream to a server: made with the options that a lock needs, and written to from any thread.

#[cfg(feature = "tls")]
use std::sync::Arc;
use std::{io, time::Duration};

use socket2::{SockRef, TcpKeepalive};
#[cfg(unix)]
use tokio::net::{UnixStream, unix};
use tokio::{
    io::AsyncRead,
    net::{TcpStream, tcp},
};

use crate::store::redis::address::{Address, Endpoint, transport::Transport};
#[cfg(feature = "tls")]
use crate::store::redis::connection::wire::tls;

/// The half that is read, by one task.
pub(crate) type Reading = Box<dyn AsyncRead + Send + Unpin>;

/// The half that is written, by any thread.
#[derive(Debug)]
pub(crate) enum Writing {
    Tcp(tcp::OwnedWriteHalf),
    #[cfg(unix)]
    Unix(unix::OwnedWriteHalf),
    #[cfg(feature = "tls")]
    Tls(Arc<tls::Session>),
    #[cfg(feature = "simulation")]
    Simulated(std::sync::Arc<dyn crate::runtime::simulation::Wire>),
}

/// Connects. A host name is resolved each time.
pub(crate) async fn connect(
    address: &Address,
    command_timeout: Duration,
) -> io::Result<(Reading, Writing)> {
    match address.endpoint() {
        Endpoint::Tcp { host, port } => {
            #[cfg(feature = "simulation")]
            if let Some(connecting) =
                crate::runtime::simulation::ask(|world| world.connect(host, *port))
            {
                let ends = connecting.await?;
                return Ok((ends.reading, Writing::Simulated(ends.writing)));
            }
            let stream = TcpStream::connect((&**host, *port)).await?;
            set_up(&stream, command_timeout)?;
            match &address.transport {
                Transport::Plain => {
                    let (reading, writing) = stream.into_split();
                    Ok((Box::new(reading), Writing::Tcp(writing)))
                }
                #[cfg(feature = "tls")]
                Transport::Tls(trust) => {
                    let (reading, session) = tls::shake_hands(stream, trust, host).await?;
                    Ok((Box::new(reading), Writing::Tls(session)))
                }
            }
        }
        #[cfg(unix)]
        Endpoint::Unix(path) => {
            let (reading, writing) = UnixStream::connect(path).await?.into_split();
            Ok((Box::new(reading), Writing::Unix(writing)))
        }
        #[cfg(not(unix))]
        Endpoint::Unix(_) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "there are no unix sockets on this system",
        )),
    }
}

/// No Nagle delay, since each command is one small write. The kernel also notices a peer that is gone: while idle by keepalive,
/// with bytes in flight by the user time-out.
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
    /// Writes what the system takes at once; never waits. Bytes that count as written may still be in a buffer: see
    /// [`flush`](Self::flush).
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(half) => half.try_write(bytes),
            #[cfg(unix)]
            Self::Unix(half) => half.try_write(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(session) => session.try_write(bytes),
            #[cfg(feature = "simulation")]
            Self::Simulated(wire) => wire.try_write(bytes),
        }
    }

    /// Writes what is left in a buffer; `WouldBlock` if the system does not take it yet.
    #[cfg_attr(
        not(feature = "tls"),
        expect(
            clippy::unnecessary_wraps,
            reason = "only what is encrypted can be left behind"
        )
    )]
    pub(crate) fn flush(&self) -> io::Result<()> {
        match self {
            Self::Tcp(_) => Ok(()),
            #[cfg(unix)]
            Self::Unix(_) => Ok(()),
            #[cfg(feature = "tls")]
            Self::Tls(session) => session.flush(),
            #[cfg(feature = "simulation")]
            Self::Simulated(_) => Ok(()),
        }
    }

    /// Waits until all that was written has been handed to the system, and the system takes more.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(half) => half.writable().await,
            #[cfg(unix)]
            Self::Unix(half) => half.writable().await,
            #[cfg(feature = "tls")]
            Self::Tls(session) => session.writable().await,
            #[cfg(feature = "simulation")]
            Self::Simulated(wire) => crate::runtime::simulation::writable(&**wire).await,
        }
    }
}
