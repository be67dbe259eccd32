//! Servers whose replies a test decides.

use std::{io, net::TcpListener, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    background::Background,
    port::listen,
    resp::{self, Malformed},
};

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
        let (listener, port) = listen();
        let background = Background::start("fake-server");
        background
            .handle()
            .spawn(accept(listener, Arc::new(script)));
        Self {
            port,
            _background: background,
        }
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

    /// Starts a server that answers with bytes of no protocol.
    pub fn garbage() -> Self {
        Self::start(|_| Reply::Bytes(vec![0, 0xff, 0x17, b'\r', b'\n', 0x80, b'\r', b'\n']))
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

async fn accept(listener: TcpListener, script: Arc<Script>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a runtime with I/O");
    loop {
        let (client, _) = listener.accept().await.expect("a listening socket");
        let script = Arc::clone(&script);
        tokio::spawn(async move {
            // An error means that the client closed the connection, which no test checks.
            answer_all(client, &*script).await.ok();
        });
    }
}

async fn answer_all(mut client: TcpStream, script: &Script) -> io::Result<()> {
    // Has room for a whole request, since input that is not the protocol is passed on as it was read.
    let mut buffer = Vec::with_capacity(16 << 10);
    while client.read_buf(&mut buffer).await? > 0 {
        while let Some(words) = next_request(&mut buffer) {
            match script(&words) {
                Reply::Bytes(bytes) => client.write_all(&bytes).await?,
                Reply::Last(bytes) => return client.write_all(&bytes).await,
                Reply::Silence => {}
                Reply::HangUp => return Ok(()),
            }
        }
    }
    Ok(())
}

fn next_request(buffer: &mut Vec<u8>) -> Option<Vec<String>> {
    let length = match resp::frame_length(buffer) {
        Ok(length) => length?,
        Err(Malformed) => buffer.len(),
    };
    let frame: Vec<u8> = buffer.drain(..length).collect();
    if frame.is_empty() {
        return None;
    }
    let words = resp::words(&frame).unwrap_or_default();
    let text = words
        .iter()
        .map(|word| String::from_utf8_lossy(word).into_owned());
    Some(text.collect())
}
