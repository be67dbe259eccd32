//! As much of an HTTP client as tests of a handler need.

use std::io;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// A request that was sent; dropping it hangs up on whoever works on the answer.
#[derive(Debug)]
pub struct HttpRequest {
    stream: TcpStream,
}

/// What a server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAnswer {
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
    /// What went wrong on the connection.
    pub async fn send(method: &str, url: &str, json: &str) -> io::Result<Self> {
        let rest = url.strip_prefix("http://").expect("an http url");
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let mut stream = TcpStream::connect(host).await?;
        // Closed after the answer, so that its end is the end of the body.
        let request = format!(
            "{method} /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{json}",
            json.len()
        );
        stream.write_all(request.as_bytes()).await?;
        Ok(Self { stream })
    }

    /// Waits for the answer.
    ///
    /// # Errors
    ///
    /// What went wrong on the connection.
    pub async fn answer(mut self) -> io::Result<HttpAnswer> {
        let mut text = String::new();
        self.stream.read_to_string(&mut text).await?;
        let (head, body) = text
            .split_once("\r\n\r\n")
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Ok(HttpAnswer {
            status: status.ok_or(io::ErrorKind::InvalidData)?,
            head: head.to_owned(),
            body: body.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeServer;

    #[tokio::test]
    async fn an_answer_is_split_into_status_head_and_body() {
        let server = FakeServer::http();
        let url = format!("http://127.0.0.1:{}/nowhere", server.port());
        let request = HttpRequest::send("GET", &url, "").await.unwrap();
        let answer = request.answer().await.unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (400, ""));
        assert!(answer.head.contains("Content-Length: 0"));
    }
}
