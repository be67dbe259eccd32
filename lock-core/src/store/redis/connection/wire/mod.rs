//! The bytes to one server and back: the stream, TLS, commands and replies.

use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) mod command;
pub(crate) mod redirect;
pub(crate) mod reply;
pub(crate) mod shared_socket;
pub(crate) mod stream;
#[cfg(feature = "tls")]
mod tls;
pub(crate) mod traffic;

/// Bytes to a server and back.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}
