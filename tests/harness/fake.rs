//! Servers that answer otherwise than a client expects.

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

/// A server on a port of its own that answers every request as a test likes.
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
    /// Sends nothing, and goes on reading.
    Silence,
    /// Closes the connection.
    HangUp,
}

impl Reply {
    /// The reply to a `PING`, which may have a text.
    pub fn pong(request: &[String]) -> Self {
        match request.get(1) {
            Some(text) => Self::Bytes(format!("${}\r\n{text}\r\n", text.len()).into_bytes()),
            None => Self::line("+PONG"),
        }
    }

    /// Sends this line, as in `line("-ERR no")` or `line(":1")`.
    pub fn line(line: &str) -> Self {
        Self::Bytes(format!("{line}\r\n").into_bytes())
    }
}

type Script = dyn Fn(&[String]) -> Reply + Send + Sync;

impl FakeServer {
    /// Starts a server that answers each request, given as its words, as `script` says.
    ///
    /// Input that is not the Redis protocol is passed to `script` as an empty list of words.
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

    /// Starts a server that takes every request for bad HTTP.
    pub fn http() -> Self {
        let reply = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        Self::start(|_| Reply::Last(reply.into()))
    }

    /// Starts a server that answers with bytes that mean nothing in any protocol.
    pub fn garbage() -> Self {
        Self::start(|_| Reply::Bytes(vec![0, 0xff, 0x17, b'\r', b'\n', 0x80, b'\r', b'\n']))
    }

    /// Starts a server that answers everything with one error, as in `error("LOADING wait")`.
    pub fn error(message: &str) -> Self {
        let reply = Reply::line(&format!("-{message}"));
        Self::start(move |_| reply.clone())
    }

    /// Starts a server that takes part in the client's handshake (`HELLO`, `AUTH`, `SELECT`,
    /// `CLIENT`, `PING`) and answers every other command with `reply`.
    pub fn wrong_type(reply: &str) -> Self {
        let reply = Reply::line(reply);
        Self::start(move |words| match words.first().map(String::as_str) {
            // Like a server older than RESP3, so that a client falls back to RESP2.
            Some("HELLO") => Reply::line("-ERR unknown command 'HELLO'"),
            Some("AUTH" | "SELECT" | "CLIENT") => Reply::line("+OK"),
            Some("PING") => Reply::pong(words),
            _ => reply.clone(),
        })
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
            // An error means that the client went away, which no test checks.
            answer_all(client, &*script).await.ok();
        });
    }
}

async fn answer_all(mut client: TcpStream, script: &Script) -> io::Result<()> {
    // Room for a whole request, since input that is not the protocol is taken as it comes.
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

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpStream,
        time::Duration,
    };

    use super::*;

    const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

    fn first_bytes(server: &FakeServer, request: &[u8]) -> io::Result<Vec<u8>> {
        first_bytes_within(Duration::from_secs(60), server, request)
    }

    fn first_bytes_within(
        within: Duration,
        server: &FakeServer,
        request: &[u8],
    ) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port()))?;
        stream.set_read_timeout(Some(within))?;
        stream.write_all(request)?;
        let mut reply = vec![0; 64];
        let count = stream.read(&mut reply)?;
        reply.truncate(count);
        Ok(reply)
    }

    #[test]
    fn a_silent_server_takes_a_request_and_says_nothing() {
        let within = Duration::from_millis(200);
        let error = first_bytes_within(within, &FakeServer::silent(), PING).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn an_http_server_answers_with_a_status_line() {
        let reply = first_bytes(&FakeServer::http(), PING).unwrap();
        assert!(reply.starts_with(b"HTTP/1.1 400 "));
    }

    #[test]
    fn garbage_is_not_the_protocol() {
        let reply = first_bytes(&FakeServer::garbage(), PING).unwrap();
        assert_eq!(resp::frame_length(&reply), Err(Malformed));
    }

    #[test]
    fn a_fixed_error_answers_everything_even_what_is_no_request() {
        let server = FakeServer::error("LOADING wait");
        for request in [PING, b"GET / HTTP/1.1\r\n"] {
            let reply = first_bytes(&server, request).unwrap();
            assert_eq!(reply, b"-LOADING wait\r\n");
        }
    }

    #[test]
    fn a_client_connects_to_the_server_of_wrong_types_and_then_gets_them() {
        let server = FakeServer::wrong_type("*0");
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let reply: redis::Value = redis::cmd("INCR").arg("n").query(&mut connection).unwrap();
        assert_eq!(reply, redis::Value::Array(Vec::new()));
    }

    #[test]
    fn a_script_may_hang_up() {
        let server = FakeServer::start(|words| {
            assert_eq!(words, ["PING"]);
            Reply::HangUp
        });
        assert_eq!(first_bytes(&server, PING).unwrap(), b"");
    }
}
