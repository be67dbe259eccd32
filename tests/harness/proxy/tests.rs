//! Every fault, between a plain client and a real server.

use std::{
    fmt::Write as _,
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
};

use super::*;
use crate::{
    server::RedisServer,
    wait::{HANG, eventually_blocking},
};

/// Long for a round trip on this machine, short for a test.
const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(10);

fn server_and_proxy() -> (RedisServer, Proxy) {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    (server, proxy)
}

struct Client(TcpStream);

impl Client {
    fn connect(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    fn send(&mut self, words: &[&str]) {
        let mut frame = format!("*{}\r\n", words.len());
        for word in words {
            write!(frame, "${}\r\n{word}\r\n", word.len()).unwrap();
        }
        self.0.write_all(frame.as_bytes()).unwrap();
    }

    /// Returns the next line, or the error. Without a line in time, that is `WouldBlock`.
    fn line(&mut self, within: Duration) -> io::Result<String> {
        self.0.set_read_timeout(Some(within)).unwrap();
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        line.truncate(line.len() - 2);
        Ok(String::from_utf8(line).unwrap())
    }

    fn lines_until(&mut self, end: &str) -> Vec<String> {
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line| line != end) {
            lines.push(self.line(LONG).unwrap());
        }
        lines
    }

    fn ask(&mut self, words: &[&str]) -> String {
        self.send(words);
        self.line(LONG).unwrap()
    }

    /// Returns whether some round trip is short. On a busy machine a single one may take long, but not all of them.
    fn is_fast(&mut self) -> bool {
        (0..20).any(|_| {
            let start = Instant::now();
            self.ask(&["PING"]);
            start.elapsed() < SHORT
        })
    }

    fn is_silent(&mut self) -> bool {
        let reply = self.line(SHORT);
        matches!(reply, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    fn end(&mut self) -> ErrorKind {
        self.line(LONG).unwrap_err().kind()
    }
}

#[test]
fn a_proxy_without_faults_changes_nothing_and_logs_requests() {
    let (_server, proxy) = server_and_proxy();
    let mut client = Client::connect(&proxy);
    assert_eq!(client.ask(&["ping"]), "+PONG");
    assert_eq!(client.ask(&["ECHO", "a\r\nb"]), "$4");
    assert_eq!(client.line(LONG).unwrap(), "a");
    assert_eq!(client.line(LONG).unwrap(), "b");
    Client::connect(&proxy).ask(&["PING"]);

    assert_eq!(proxy.connections(), 2);
    assert_eq!((proxy.requests("PING"), proxy.requests("GET")), (2, 0));
    let log = proxy.log();
    assert_eq!(log[1].text(), ["ECHO", "a\r\nb"]);
    assert_eq!((log[1].connection, log[2].connection), (1, 2));
    assert!(log[0].at < log[1].at);
    proxy.clear_log();
    assert!(proxy.log().is_empty());
}

#[test]
fn bytes_of_another_protocol_pass_unchanged() {
    let (_server, proxy) = server_and_proxy();
    let mut client = Client::connect(&proxy);
    client.0.write_all(b"PING\r\n").unwrap();
    assert_eq!(client.line(LONG).unwrap(), "+PONG");
}

#[test]
fn a_delay_holds_back_each_frame_but_not_later_ones() {
    for direction in [Direction::Requests, Direction::Replies] {
        let (_server, proxy) = server_and_proxy();
        let mut client = Client::connect(&proxy);
        let delay = 10 * SHORT;
        proxy.delay(direction, delay);
        let start = Instant::now();
        for _ in 0..20 {
            client.send(&["PING"]);
        }
        for _ in 0..20 {
            assert_eq!(client.line(LONG).unwrap(), "+PONG");
        }
        assert!(start.elapsed() >= delay);
        // If each waited for the previous one, they would take twice as long.
        assert!(start.elapsed() < 10 * delay, "{:?}", start.elapsed());
        proxy.heal();
        assert!(client.is_fast());
    }
}

#[test]
fn a_lost_reply_silences_its_connection_after_the_server_did_the_work() {
    let (server, proxy) = server_and_proxy();
    let mut client = Client::connect(&proxy);
    proxy.lose(
        Direction::Replies,
        Frames::nth_of(2, "SET"),
        AfterLoss::Silence,
    );
    assert_eq!(client.ask(&["SET", "lost-reply", "1"]), "+OK");
    client.send(&["SET", "lost-reply", "2"]);
    client.send(&["PING"]);
    assert!(client.is_silent());
    assert_eq!(server.get("lost-reply").as_deref(), Some("2"));
    // Only the second is lost, so a new connection works.
    assert_eq!(
        Client::connect(&proxy).ask(&["SET", "lost-reply", "3"]),
        "+OK"
    );
    // When the fault heals, the silent connection is reset.
    proxy.heal();
    assert_eq!(client.end(), ErrorKind::ConnectionReset);
}

#[test]
fn a_lost_request_never_reaches_the_server() {
    let (server, proxy) = server_and_proxy();
    let mut client = Client::connect(&proxy);
    proxy.lose(Direction::Requests, Frames::nth(2), AfterLoss::Silence);
    assert_eq!(client.ask(&["SET", "lost-request", "1"]), "+OK");
    client.send(&["SET", "lost-request", "2"]);
    eventually_blocking(HANG, "the second arrives", || proxy.requests("SET") == 2);
    assert!(client.is_silent());
    assert_eq!(server.get("lost-request").as_deref(), Some("1"));
}

#[test]
fn a_loss_may_reset_the_connection() {
    let (server, proxy) = server_and_proxy();
    let mut client = Client::connect(&proxy);
    proxy.lose(Direction::Replies, Frames::of("SET"), AfterLoss::Reset);
    assert_eq!(client.ask(&["PING"]), "+PONG");
    client.send(&["SET", "reset-after", "1"]);
    assert_eq!(client.end(), ErrorKind::ConnectionReset);
    assert_eq!(server.get("reset-after").as_deref(), Some("1"));
}

#[test]
fn replies_are_matched_to_their_requests_across_messages_and_confirmations() {
    for protocol in ["2", "3"] {
        let (server, proxy) = server_and_proxy();
        let mut client = Client::connect(&proxy);
        proxy.lose(Direction::Replies, Frames::of("PING"), AfterLoss::Continue);
        client.send(&["HELLO", protocol]);
        client.send(&["SUBSCRIBE", "one", "two"]);
        client.send(&["PING"]);
        let mut lines = client.lines_until(":2");
        server.cli(&["PUBLISH", "one", "hello"]);
        lines.extend(client.lines_until("hello"));
        client.send(&["PING"]);
        eventually_blocking(LONG, "the second PING has arrived", || {
            server.calls("ping") >= 3
        });
        server.cli(&["PUBLISH", "one", "bye"]);
        lines.extend(client.lines_until("bye"));
        let replies = lines
            .iter()
            .filter(|line| line.to_lowercase().contains("pong"));
        assert_eq!(replies.count(), 0, "RESP{protocol}: {lines:?}");
    }
}

#[test]
fn a_black_hole_for_all_swallows_new_connections_too() {
    let (_server, proxy) = server_and_proxy();
    let mut old = Client::connect(&proxy);
    old.ask(&["PING"]);
    proxy.black_hole(Scope::All);
    let mut new = Client::connect(&proxy);
    for client in [&mut old, &mut new] {
        client.send(&["PING"]);
        assert!(client.is_silent());
    }
    assert_eq!(proxy.requests("PING"), 1, "nothing was read meanwhile");
    proxy.heal();
    for client in [&mut old, &mut new] {
        assert_eq!(client.line(LONG).unwrap(), "+PONG");
    }
}

#[test]
fn a_black_hole_stops_reading_so_that_the_senders_buffers_fill() {
    let (_server, proxy) = server_and_proxy();
    let mut client = Client::connect(&proxy);
    client.ask(&["PING"]);
    proxy.black_hole(Scope::Existing);
    client.0.set_write_timeout(Some(SHORT)).unwrap();
    let block = vec![b'x'; 1 << 20];
    let blocked = (0..64).find_map(|_| client.0.write_all(&block).err());
    assert_eq!(blocked.unwrap().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_black_hole_swallows_delayed_frames_in_flight() {
    let (server, proxy) = server_and_proxy();
    let mut client = Client::connect(&proxy);
    client.ask(&["PING"]);
    // The delay is so long that the request is still in flight when the hole opens, even on a busy machine.
    let delay = 20 * SHORT;
    proxy.delay(Direction::Requests, delay);
    client.send(&["ECHO", "late"]);
    eventually_blocking(LONG, "the request is in flight", || {
        proxy.requests("ECHO") == 1
    });
    proxy.black_hole(Scope::Existing);
    let reply = client.line(delay + SHORT);
    assert_eq!(reply.unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(server.calls("echo"), 0);
    proxy.heal();
    assert_eq!(client.line(LONG).unwrap(), "$4");
}

#[test]
fn a_half_close_of_replies_still_lets_requests_through() {
    let (server, proxy) = server_and_proxy();
    let mut client = Client::connect(&proxy);
    client.ask(&["PING"]);
    proxy.half_close(Direction::Replies);
    assert_eq!(client.end(), ErrorKind::UnexpectedEof);
    client.send(&["SET", "half-close", "1"]);
    eventually_blocking(LONG, "the request arrives", || {
        server.get("half-close").is_some()
    });
}

#[test]
fn a_half_close_of_requests_ends_the_connection_at_the_server() {
    let (_server, proxy) = server_and_proxy();
    let mut client = Client::connect(&proxy);
    client.ask(&["PING"]);
    // A server that reads the end of a connection closes it.
    proxy.half_close(Direction::Requests);
    assert_eq!(client.end(), ErrorKind::UnexpectedEof);
}

#[test]
fn a_cut_reply_arrives_half_and_ends_the_connection() {
    let (_server, proxy) = server_and_proxy();
    proxy.cut(Direction::Replies, Frames::of("ECHO"));
    let mut client = Client::connect(&proxy);
    assert_eq!(client.ask(&["PING"]), "+PONG");
    client.send(&["ECHO", "12345678"]);
    // Half of `$8`, `12345678` and their line ends.
    assert_eq!(client.line(LONG).unwrap(), "$8");
    assert_eq!(client.end(), ErrorKind::UnexpectedEof);
    proxy.heal();
    assert_eq!(Client::connect(&proxy).ask(&["PING"]), "+PONG");
}

#[test]
fn a_flood_of_messages_surrounds_the_replies_until_it_heals() {
    let (_server, proxy) = server_and_proxy();
    let mut client = Client::connect(&proxy);
    client.send(&["PING"]);
    assert_eq!(client.line(LONG).unwrap(), "+PONG");
    proxy.flood();
    let message = [">3", "$7", "message", "$5", "flood", "$4", "word"];
    for word in message.iter().chain(&message) {
        assert_eq!(client.line(LONG).unwrap(), *word);
    }
    client.send(&["ECHO", "flooded"]);
    client.lines_until("flooded");
    proxy.heal();
    client.send(&["ECHO", "the last"]);
    client.lines_until("the last");
    assert_eq!(
        client.line(SHORT).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
}
