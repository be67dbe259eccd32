//! A network between clients and a server, in which each byte arrives a quarter of a millisecond after it was sent.
//!
//! It is a separate process, so that its processor time is not counted as that of the clients. The proxy of the harness is
//! unsuitable: it delays by whole milliseconds, and parses the traffic.

use std::{
    array,
    collections::VecDeque,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    num::NonZeroU64,
    thread,
    time::{Duration, Instant},
};

use lock_tests::{Process, RedisServer};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    thread::set_current_timer_slack,
};

use crate::{cores::put_with_servers, worker};

/// The delay of each direction.
const DELAY: Duration = Duration::from_micros(250);

/// A running network, ended on drop.
pub(crate) struct Network {
    url: String,
    _process: Process,
}

impl Network {
    /// Starts a network to this server, on the cores of servers.
    pub(crate) fn start(server: &RedisServer) -> Self {
        let mut process = worker::start("network", &server.port().to_string(), &[]);
        put_with_servers(process.id());
        process.say("begin");
        Self {
            url: format!("redis://127.0.0.1:{}", process.line()),
            _process: process,
        }
    }

    /// The url for clients.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

pub(crate) fn worker(server_port: &str) {
    let server_port: u16 = server_port.parse().expect("a port");
    worker::send("ready");
    // Threads that start from here on inherit the cores.
    worker::received();
    // By default, the kernel lets each sleep take up to 50 µs longer. Threads inherit this setting, too.
    set_current_timer_slack(Some(NonZeroU64::MIN)).expect("a Linux system");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a listener has an address");
    worker::send(&address.port().to_string());
    for client in listener.incoming() {
        let client = client.expect("a client");
        let server = TcpStream::connect(("127.0.0.1", server_port)).expect("a running server");
        // An error ends the connection.
        thread::spawn(move || forward(&client, &server).ok());
    }
}

/// Forwards bytes in both directions until one end closes.
fn forward(client: &TcpStream, server: &TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut pipes = [Pipe::new(client, server), Pipe::new(server, client)];
    loop {
        let due = pipes.iter().filter_map(Pipe::next_due).min();
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec::try_from(left).expect("less than a second"));
        let mut ends = [client, server].map(|end| PollFd::new(end, PollFlags::IN));
        poll(&mut ends, left.as_ref())?;
        let has_bytes: [bool; 2] = array::from_fn(|end| !ends[end].revents().is_empty());
        for (pipe, has_bytes) in pipes.iter_mut().zip(has_bytes) {
            if has_bytes && pipe.receive()? == 0 {
                return Ok(());
            }
            pipe.deliver()?;
        }
    }
}

/// One direction of a connection. A sender never waits for bytes in flight.
struct Pipe<'a> {
    from: &'a TcpStream,
    to: &'a TcpStream,
    in_flight: VecDeque<(Instant, Vec<u8>)>,
}

impl<'a> Pipe<'a> {
    fn new(from: &'a TcpStream, to: &'a TcpStream) -> Self {
        Self {
            from,
            to,
            in_flight: VecDeque::new(),
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.in_flight.front().map(|(due, _)| *due)
    }

    /// Returns the number of bytes that were read; zero at the end of the stream.
    fn receive(&mut self) -> io::Result<usize> {
        let mut buffer = [0; 16 << 10];
        let count = self.from.read(&mut buffer)?;
        let due = Instant::now() + DELAY;
        self.in_flight.push_back((due, buffer[..count].to_vec()));
        Ok(count)
    }

    /// Writes all bytes that are due.
    fn deliver(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let due = self.in_flight.partition_point(|(due, _)| *due <= now);
        let bytes: Vec<u8> = self
            .in_flight
            .drain(..due)
            .flat_map(|(_, bytes)| bytes)
            .collect();
        self.to.write_all(&bytes)
    }
}
