//! A network between clients and a server, in which each byte arrives a quarter of a millisecond after it was sent.
//!
//! It is a separate process, so that its processor time is not counted as that of the clients. The proxy of the harness is
//! unsuitable: it delays by whole milliseconds, and parses the traffic.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    num::NonZeroU64,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use lock_tests::{Process, RedisServer};
use rustix::thread::set_current_timer_slack;

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
    // Threads that are started after this point inherit the cores of this process.
    worker::received();
    // By default, the kernel lets each sleep take up to 50 µs longer. Threads inherit this setting, too.
    set_current_timer_slack(Some(NonZeroU64::MIN)).expect("a Linux system");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a listener has an address");
    worker::send(&address.port().to_string());
    for client in listener.incoming() {
        let client = client.expect("a client");
        let server = TcpStream::connect(("127.0.0.1", server_port)).expect("a running server");
        for (from, to) in [(&client, &server), (&server, &client)] {
            let [from, to] = [from, to].map(|end| end.try_clone().expect("a handle"));
            // An error ends the connection.
            thread::spawn(move || forward(from, to).ok());
        }
    }
}

/// Forwards bytes in one direction until the sender closes. A sender never waits for bytes in flight.
fn forward(mut from: TcpStream, mut to: TcpStream) -> io::Result<()> {
    to.set_nodelay(true)?;
    let (in_flight, arriving) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        for (due, bytes) in arriving {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            to.write_all(&bytes)?;
        }
        to.shutdown(Shutdown::Both)
    });
    let mut buffer = [0; 16 << 10];
    loop {
        let count = from.read(&mut buffer)?;
        let bytes = buffer[..count].to_vec();
        let sent = in_flight.send((Instant::now() + DELAY, bytes));
        if count == 0 || sent.is_err() {
            return Ok(());
        }
    }
}
