//! A connection is no stream of items, although its name ends in `Stream`.
#![allow(clippy::missing_errors_doc)]

use lock_core::distributed_lock;
use tokio::net::{TcpStream, UnixStream};

/// Holds the lock while it connects.
#[distributed_lock(key = "connect:{port}")]
pub async fn connect(port: u16) -> std::io::Result<TcpStream> {
    TcpStream::connect(("127.0.0.1", port)).await
}

/// Another type of connection.
#[distributed_lock(key = "connect:{path}")]
pub async fn connect_to(path: &str) -> std::io::Result<UnixStream> {
    UnixStream::connect(path).await
}
