//! A waiter for the lock `k` whose process is stopped.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use lock_tests::{HANG, RedisServer, eventually};

/// The queue of `k`.
pub(crate) const QUEUE: &str = "__lock_core__:waiters:lock:k";

/// A waiter that never checks its entry, so it gets the lock only if another client grants it.
pub(crate) struct Stopped {
    _listener: TcpStream,
}

impl Stopped {
    pub(crate) fn subscribed(server: &RedisServer) -> Self {
        let mut listener = TcpStream::connect(("127.0.0.1", server.port())).expect("it is up");
        let request = b"SUBSCRIBE __lock_core__:grants:stopped\r\n";
        listener.write_all(request).expect("it is up");
        listener.read_exact(&mut [0; 8]).expect("it is up");
        Self {
            _listener: listener,
        }
    }

    /// Adds its entry. Its place is far in the future, so that the entry is recent even on a slow machine.
    pub(crate) fn join(server: &RedisServer) {
        let entry = "stopped 1 600000 x lc1:web/1:00";
        server.cli(&["ZADD", QUEUE, "8500000000000000", entry]);
    }

    pub(crate) fn has_it(server: &RedisServer) -> bool {
        server.get("lock:k").as_deref() == Some("lc1:web/1:00")
    }

    pub(crate) async fn gets_it(server: &RedisServer) {
        eventually!(HANG, "the waiter has the lock" => Self::has_it(server));
    }
}
