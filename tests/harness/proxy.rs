//! A proxy between clients and a server that reads the Redis protocol and injects faults on demand.

mod connection;
mod faults;
#[cfg(test)]
mod tests;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::net::TcpStream;

pub use self::faults::{AfterLoss, Direction, Frames, Scope};
use self::{
    connection::Connection,
    faults::{Faults, Verdict},
};
use crate::{background::Background, scripts::PROBED, server::RedisServer};

/// A TCP proxy in front of a server, on a port of its own.
///
/// It passes everything on, even encrypted traffic, until a method injects a fault. It runs on a thread of its own, so a test that
/// stalls its runtime does not stall the network. Faults add up until [`heal`] heals them. Each applies to all frames that are not
/// being written when its method returns; connections are reset or closed soon afterwards.
///
/// [`heal`]: Proxy::heal
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    server_port: Arc<AtomicU16>,
    faults: Arc<Faults>,
    // Kept for its tasks, which end with it.
    _background: Background,
}

/// A request of a client that the proxy received, whether or not it was passed on.
#[derive(Debug, Clone)]
pub struct Request {
    /// The time at which the proxy had all of it.
    pub at: Instant,
    /// The connection it came on, counted from 1.
    pub connection: u64,
    /// The command and its arguments.
    pub words: Vec<Vec<u8>>,
}

impl Request {
    /// Returns the command's name in upper case. The script that a new connection tries is `PROBE`, so that faults of a lock's
    /// scripts do not prevent connections.
    pub fn command(&self) -> String {
        if self.words.get(3).map(Vec::as_slice) == Some(PROBED.as_bytes()) {
            return "PROBE".to_owned();
        }
        let name = self.words.first().map_or(&b""[..], Vec::as_slice);
        String::from_utf8_lossy(name).to_uppercase()
    }

    /// Returns the words as text, for an assertion or its message.
    pub fn text(&self) -> Vec<String> {
        let words = self.words.iter();
        words
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect()
    }
}

impl Proxy {
    /// Starts a proxy in front of the server on this port of 127.0.0.1.
    pub fn start(server_port: u16) -> Self {
        let faults = Arc::<Faults>::default();
        let server_port = Arc::new(AtomicU16::new(server_port));
        let (shared_faults, shared_port) = (Arc::clone(&faults), Arc::clone(&server_port));
        let (background, port) = Background::serve("proxy", move |client| {
            let connection = Connection::new(&shared_faults);
            serve(client, shared_port.load(Ordering::SeqCst), connection)
        });
        Self {
            port,
            server_port,
            faults,
            _background: background,
        }
    }

    /// Redirects new connections to another server, as after a fail-over. Existing connections keep their server.
    pub fn redirect_to(&self, server_port: u16) {
        self.server_port.store(server_port, Ordering::SeqCst);
    }

    /// Heals every fault. Frames that a black hole held back are passed on, and delayed frames in flight keep their delay. A
    /// connection that lost a frame is reset, since its replies no longer match.
    pub fn heal(&self) {
        self.faults.heal();
    }

    /// Delays each frame in this direction by this time. Frames keep their order, and their delays overlap.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.faults.set_delay(direction, delay);
    }

    /// Loses frames in this direction. Replaces an earlier `lose` or [`cut`](Self::cut) for the same direction.
    ///
    /// ```no_run
    /// # use lock_tests::{AfterLoss, Direction, Proxy, Frames};
    /// # let proxy = Proxy::start(6379);
    /// // The server grants the lock, but the client never gets the reply:
    /// proxy.lose(Direction::Replies, Frames::of("EVALSHA"), AfterLoss::Silence);
    /// // The second request never arrives, and the client notices at once:
    /// proxy.lose(Direction::Requests, Frames::nth(2), AfterLoss::Reset);
    /// ```
    pub fn lose(&self, direction: Direction, which: Frames, after: AfterLoss) {
        self.faults.set_loss(direction, which, Verdict::Lose(after));
    }

    /// Cuts frames in this direction in half: only their first half arrives, followed by the end of that direction (FIN).
    /// Replaces an earlier [`lose`](Self::lose) or `cut` for the same direction.
    pub fn cut(&self, direction: Direction, which: Frames) {
        self.faults.set_loss(direction, which, Verdict::Cut);
    }

    /// Swallows all traffic and stops reading, as a firewall that drops packets does.
    ///
    /// The kernel still accepts new connections under [`Scope::All`]: they connect and stay silent.
    pub fn black_hole(&self, scope: Scope) {
        self.faults.freeze(scope);
    }

    /// Resets (RST) the existing connections. Frames in flight on them are lost.
    pub fn reset(&self) {
        self.faults.reset();
    }

    /// Sends endless messages on the existing connections, as fast as the clients read them, with the replies between them.
    ///
    /// The clients must speak RESP3. No client has subscribed to the messages.
    pub fn flood(&self) {
        self.faults.flood();
    }

    /// Ends one direction of the existing connections (FIN), and keeps the other open.
    pub fn half_close(&self, direction: Direction) {
        self.faults.half_close(direction);
    }

    /// Returns how many connections were accepted so far.
    pub fn connections(&self) -> u64 {
        self.faults.accepted()
    }

    /// Returns how many requests with this command were received so far, lost ones included.
    pub fn requests(&self, command: &str) -> usize {
        let log = self.faults.log();
        log.iter()
            .filter(|request| request.command() == command)
            .count()
    }

    /// Returns the requests received so far, lost ones included, in order.
    pub fn log(&self) -> Vec<Request> {
        self.faults.log()
    }

    /// Forgets the requests received so far.
    pub fn clear_log(&self) {
        self.faults.clear_log();
    }

    /// Returns the url for a client without a name and password.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the url for a client with this name (empty for the default one) and password.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@127.0.0.1:{}", self.port)
    }

    /// Like [`RedisServer::url_without_scripts`](crate::RedisServer::url_without_scripts).
    pub fn url_without_scripts(&self) -> String {
        let (user, password) = RedisServer::WITHOUT_SCRIPTS;
        self.url_as(user, password)
    }

    /// Returns the port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }
}

async fn serve(mut client: TcpStream, server_port: u16, connection: Connection) {
    connection.thawed().await;
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", server_port)).await else {
        // Without a proxy, the client would see a refused connection. A reset is the closest to that.
        client.set_zero_linger().ok();
        return;
    };
    connection.run(&mut client, &mut server).await;
}
