//! The stream of bytes to a server and back, whatever the transport.

use std::{io, pin::Pin, time::Duration};

#[cfg(unix)]
use redis::ConnectionAddr;
use tokio::io::{AsyncRead, AsyncWrite};
#[cfg(unix)]
use tokio::net::UnixStream;
#[cfg(feature = "tls")]
use tokio_rustls::client::TlsStream;

use crate::backend::redis::transport::{address::Address, socket::Socket};
#[cfg(feature = "tls")]
use crate::backend::redis::transport::{address::security::Transport, tls};

/// A connected stream. A read or write waits only for the peer.
pub(super) enum Stream {
    Plain(Socket),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream<Socket>>),
    /// A stream of a simulation or a test, which cannot be moved.
    #[cfg(any(test, feature = "simulation"))]
    Fixed(Box<dyn ReadWrite>),
}

pub(super) trait ReadWrite: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ReadWrite for S {}

/// Connects, and agrees on TLS where the address says so.
///
/// # Cancel safety
///
/// Dropping the future closes the stream.
pub(super) async fn connect(address: &Address, command_timeout: Duration) -> io::Result<Stream> {
    #[cfg(unix)]
    if let ConnectionAddr::Unix(path) = address.addr() {
        return Ok(Stream::Plain(UnixStream::connect(path).await?.into()));
    }
    let no_place = "this system does not support unix sockets";
    let (host, port) =
        (address.place()).ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, no_place))?;
    #[cfg(feature = "simulation")]
    if let Some(connecting) = crate::runtime::simulation::ask(|world| world.connect(host, port)) {
        return Ok(Stream::Fixed(Box::new(connecting.await?)));
    }
    let socket = Socket::connect(host, port, command_timeout).await?;
    #[cfg(feature = "tls")]
    if let Transport::Tls(trust) = &address.transport {
        let secured = tls::shake_hands(socket, trust, host).await?;
        return Ok(Stream::Tls(Box::new(secured)));
    }
    Ok(Stream::Plain(socket))
}

impl Stream {
    /// Registers the socket with the reactor of the runtime that this thread has entered. Returns whether that is possible.
    ///
    /// # Panics
    /// Panics if that runtime has no reactor.
    pub(super) fn register_here(&mut self) -> io::Result<bool> {
        match self {
            Self::Plain(socket) => socket.register_here()?,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.get_mut().0.register_here()?,
            #[cfg(any(test, feature = "simulation"))]
            Self::Fixed(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the stream that carries the bytes.
    pub(super) fn pinned(&mut self) -> Pin<&mut dyn ReadWrite> {
        match self {
            Self::Plain(socket) => Pin::new(socket),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Pin::new(&mut **stream),
            #[cfg(any(test, feature = "simulation"))]
            Self::Fixed(stream) => Pin::new(&mut **stream),
        }
    }

    /// Returns `true` if there are bytes that have arrived and were not read.
    pub(super) fn is_readable(&self) -> bool {
        match self {
            Self::Plain(socket) => socket.is_readable(),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.get_ref().0.is_readable(),
            #[cfg(any(test, feature = "simulation"))]
            Self::Fixed(_) => false,
        }
    }
}
