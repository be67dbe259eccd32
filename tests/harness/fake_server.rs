//! Servers whose replies a test decides.

use std::{io, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{background::Background, resp, scripts::PROBED};

/// A server on a port of its own whose replies a closure decides.
#[derive(Debug)]
pub struct FakeServer {
    port: u16,
    // Kept for its tasks, which end with it.
    _background: Background,
}

/// The reply of a [`FakeServer`] to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Sends these bytes.
    Bytes(Vec<u8>),
    /// Sends these bytes and closes the connection.
    Last(Vec<u8>),
    /// Sends nothing, and continues to read.
    Silence,
    /// Closes the connection.
    HangUp,
}

impl Reply {
    /// Builds the reply to a `PING`, which may have a text.
    pub fn pong(request: &[String]) -> Self {
        match request.get(1) {
            Some(text) => Self::Bytes(format!("${}\r\n{text}\r\n", text.len()).into_bytes()),
            None => Self::line("+PONG"),
        }
    }

    /// Makes a reply of one line, as in `line("-ERR no")` or `line(":1")`.
    pub fn line(line: &str) -> Self {
        Self::Bytes(format!("{line}\r\n").into_bytes())
    }
}

type Script = dyn Fn(&[String]) -> Reply + Send + Sync;

impl FakeServer {
    /// Starts a server that passes the words of each request to `script`, and sends the reply that it returns.
    ///
    /// Input that is not the Redis protocol is passed as an empty list of words.
    pub fn start(script: impl Fn(&[String]) -> Reply + Send + Sync + 'static) -> Self {
        let script = Arc::new(script);
        let (background, port) = Background::serve("fake-server", move |client| {
            let script = Arc::clone(&script);
            // An error means that the client closed the connection, which no test checks.
            async move { answer_all(client, &*script).await.unwrap_or_default() }
        });
        Self {
            port,
            _background: background,
        }
    }

    /// Starts a server without RESP3 that accepts each client: it replies to `HELLO`, `PING` and the script that a new connection
    /// tries, and `script` replies to all other requests.
    pub fn with_handshake(script: impl Fn(&[String]) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(move |request| match request[0].as_str() {
            "PING" => Reply::pong(request),
            "HELLO" => Reply::line("-ERR unknown command 'HELLO'"),
            "EVALSHA" if request[3] == PROBED => Reply::line(":1"),
            _ => script(request),
        })
    }

    /// Starts a server that accepts connections and never answers.
    pub fn silent() -> Self {
        Self::start(|_| Reply::Silence)
    }

    /// Starts a server that answers every request as an HTTP server does.
    pub fn http() -> Self {
        let reply = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        Self::start(|_| Reply::Last(reply.into()))
    }

    /// Returns the url for a client.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }
}

async fn answer_all(mut client: TcpStream, script: &Script) -> io::Result<()> {
    // Has room for a whole request, since input that is not the protocol is passed on as it was read.
    let mut buffer = Vec::with_capacity(16 << 10);
    while client.read_buf(&mut buffer).await? > 0 {
        while let Some(frame) = resp::take_frame(&mut buffer) {
            let words = resp::words(&frame).unwrap_or_default();
            let words = words
                .iter()
                .map(|word| String::from_utf8_lossy(word).into_owned());
            match script(&words.collect::<Vec<_>>()) {
                Reply::Bytes(bytes) => client.write_all(&bytes).await?,
                Reply::Last(bytes) => return client.write_all(&bytes).await,
                Reply::Silence => {}
                Reply::HangUp => return Ok(()),
            }
        }
    }
    Ok(())
}
