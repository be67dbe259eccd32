//! A minimal HTTP client for tests of handlers.

use std::io;

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

/// A request that was sent. Dropping it closes the connection, even while the handler works on the response.
#[derive(Debug)]
pub struct HttpRequest {
    stream: TcpStream,
}

/// The response of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpResponse {
    /// The status code.
    pub status: u16,
    /// The status line and the headers.
    pub head: String,
    /// The body.
    pub body: String,
}

impl HttpRequest {
    /// Sends a request, as in `send("POST", "http://127.0.0.1:3000/orders", r#"{"cents": 1}"#)`.
    ///
    /// # Errors
    ///
    /// An error of the connection.
    pub async fn send(method: &str, url: &str, json: &str) -> io::Result<Self> {
        Self::send_with(method, url, &[], json).await
    }

    /// Sends a request with headers of its own, as in `&["Idempotency-Key: 7"]`.
    ///
    /// # Errors
    ///
    /// An error of the connection.
    pub async fn send_with(
        method: &str,
        url: &str,
        headers: &[&str],
        json: &str,
    ) -> io::Result<Self> {
        let rest = url.strip_prefix("http://").expect("an http url");
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let mut stream = TcpStream::connect(host).await?;
        // The server is asked to close the connection after the response, so that its end is the end of the body.
        let headers: String = headers.iter().flat_map(|line| [line, "\r\n"]).collect();
        let request = format!(
            "{method} /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n{headers}\r\n{json}",
            json.len()
        );
        stream.write_all(request.as_bytes()).await?;
        Ok(Self { stream })
    }

    /// Resets the connection (RST): the server sees a broken connection, not the end of the request's stream (FIN). Dropping
    /// the request also resets the connection if bytes have arrived that were not read.
    ///
    /// # Errors
    ///
    /// An error of the connection.
    pub fn reset(self) -> io::Result<()> {
        self.stream.set_zero_linger()
    }

    /// Reads until this text has arrived, and leaves the rest unread.
    ///
    /// # Errors
    ///
    /// An error of the connection, or its end before the text.
    pub async fn read_until(&mut self, text: &str) -> io::Result<()> {
        let mut read = Vec::new();
        while !String::from_utf8_lossy(&read).contains(text) {
            read.push(self.stream.read_u8().await?);
        }
        Ok(())
    }

    /// Returns the [`bytes`](Self::bytes) as text.
    pub async fn rest(self) -> String {
        String::from_utf8_lossy(&self.bytes().await).into_owned()
    }

    /// Returns the bytes that arrive before the connection ends, by a close or a reset.
    pub async fn bytes(mut self) -> Vec<u8> {
        let mut read = Vec::new();
        // A reset also ends the bytes.
        self.stream.read_to_end(&mut read).await.ok();
        read
    }

    /// Waits for the response.
    ///
    /// # Errors
    ///
    /// An error of the connection.
    pub async fn response(self) -> io::Result<HttpResponse> {
        let mut stream = BufReader::new(self.stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let head = head.trim_end();
        let mut body = String::new();
        // Not every server closes the connection, although it was asked to.
        match length(head) {
            Some(length) => stream.take(length).read_to_string(&mut body).await?,
            None => stream.read_to_string(&mut body).await?,
        };
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Ok(HttpResponse {
            status: status.ok_or(io::ErrorKind::InvalidData)?,
            head: head.to_owned(),
            body,
        })
    }
}

/// Returns the number of bytes that follow the head, if the head names it.
fn length(head: &str) -> Option<u64> {
    let headers = head.lines().filter_map(|line| line.split_once(':'));
    let mut lengths = headers.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    lengths.next()?.1.trim().parse().ok()
}
