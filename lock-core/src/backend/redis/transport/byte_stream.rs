//! Bytes to a server and back, whatever carries them.

use tokio::io::{AsyncRead, AsyncWrite};

/// Bytes to a server and back.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}
