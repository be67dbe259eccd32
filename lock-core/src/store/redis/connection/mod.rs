//! One connection: a handle and a driver of the crate `redis`, watched from outside.
//!
//! The handle puts requests into a queue; the driver writes them in their order and assigns the replies. The driver runs on the
//! manager's thread, or is shared (`shared_driver/`). A request is a future that may be polled anywhere. The rest of this crate
//! relies on the facts below. The crate `redis` does not document them, so the tests in `crate_facts.rs` hold them:
//!
//! - A handle has one socket for its whole life. It never reconnects, and sends nothing twice.
//! - Requests leave in the order in which their futures were first polled, as long as the queue has room. Requests that wait for
//!   room may overtake each other. So a request that must arrive behind another one is sent after the other's reply, or is
//!   repeated.
//! - If the future of a request is dropped before the driver took the request, the request never leaves. If the future is dropped
//!   later, the request is executed, and requests sent after the drop arrive behind it. A request that shares a message with those
//!   of other tasks leaves as long as one of them is waited for (`shared_driver/gathering.rs`).
//! - After the waker of a request has panicked, the driver can still be polled.
//!
//! Not used are the crate's `ConnectionManager`, and its clients for clusters and sentinels. They replace connections and send
//! again behind one handle. A clean-up then cannot follow its acquire on the same connection.

use std::{
    pin::pin,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use redis::{Pipeline, Value, aio::MultiplexedConnection};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    runtime::{
        catch_panic::catch_panic,
        clock::{Clock, Moment},
    },
    store::{
        in_flight::{ConnectionId, InFlight},
        redis::connection::shared_driver::Shielded,
    },
};

mod authentication;
pub(crate) mod capabilities;
pub(crate) mod errors;
pub(crate) mod exchange;
pub(crate) mod handshake;
pub(crate) mod known_primary;
pub(crate) mod opening;
pub(crate) mod pub_sub;
pub(crate) mod ready;
pub(crate) mod reconnecting;
pub(crate) mod sentinel;
mod session;
pub(crate) mod shared_driver;
pub(crate) mod wire;

// The vocabulary of this folder.
pub(super) use capabilities::{Capabilities, DeleteIf};
pub(super) use handshake::{CurrentConnection, Purpose};
pub(super) use pub_sub::PubSubDispatch;
pub(super) use reconnecting::ReconnectingConnection;
pub(super) use shared_driver::{Driver, SharedDriver};
pub(super) use wire::{
    command::{Arg, command, in_one_message},
    reply,
    stream::Watched,
    traffic::{NoReply, Traffic},
};

pub(super) const CLOCK: Clock = Clock::Boot;

#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) id: ConnectionId,
    /// Each request has a clone.
    handle: MultiplexedConnection,
    pub(crate) traffic: Arc<Traffic>,
    /// `None` if the driver runs on the manager's thread.
    shared: Option<Arc<SharedDriver>>,
    /// Whether a PING is in flight that decides whether the connection is dead.
    pub(super) probed: AtomicBool,
    /// Whether requests may use the connection. The end of an unused connection is not reported.
    pub(super) in_use: AtomicBool,
}

impl Connection {
    pub(super) fn new(handle: MultiplexedConnection, traffic: Arc<Traffic>) -> Self {
        Self {
            id: ConnectionId::next(),
            handle,
            traffic,
            shared: None,
            probed: AtomicBool::new(false),
            in_use: AtomicBool::new(false),
        }
    }

    /// Has requests poll this driver themselves.
    pub(super) fn sharing(mut self, driver: Arc<SharedDriver>) -> Self {
        self.shared = Some(driver);
        self
    }

    /// Sends commands in one message, and waits for their replies, one for each: see [`reply`](Self::reply).
    pub(super) async fn several(
        &self,
        commands: &Pipeline,
        in_flight: Option<&InFlight>,
        sent: Moment,
        until: Option<Moment>,
    ) -> Result<Vec<Value>, NoReply> {
        let mut handle = self.behind_messages();
        let replies = pin!(handle.send_packed_commands(commands, 0, commands.len()));
        self.reply(replies, in_flight, sent, until).await
    }

    /// Sends one or more commands in one message and waits for their replies, without a time-out of its own.
    pub(super) async fn ask_all(&self, commands: &[&[Arg<'_>]]) -> Result<Vec<Value>, NoReply> {
        let commands = in_one_message(commands.iter().map(|words| command(&[words])));
        self.several(&commands, None, CLOCK.now(), None).await
    }

    /// Polls the crate's driver until the connection is over.
    ///
    /// `silent` is called after a reply was late, and while requests are in flight and nothing came for `patience`. `left` is
    /// called once, as soon as nothing more is sent on this connection.
    pub(super) async fn drive(
        &self,
        driver: Driver,
        patience: Duration,
        silent: impl Fn() + Send,
        left: impl Fn() + Send,
    ) {
        let (mut driver, mut tick) = (Shielded::new(driver), interval(patience / 8));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut retired = None::<Moment>;
        loop {
            tokio::select! {
                biased;
                () = &mut driver => break,
                () = self.traffic.retired.notified() => {
                    if retired.is_none() {
                        retired = Some(CLOCK.now());
                        left();
                    }
                }
                _ = tick.tick() => {
                    catch_panic(|| self.traffic.tick.notify_waiters());
                    if self.traffic.is_silent(patience) {
                        silent();
                    }
                }
            }
            let is_idle = self.traffic.in_flight() == 0;
            if retired.is_some_and(|retired| is_idle || CLOCK.now() >= retired.after(patience)) {
                break;
            }
        }
        if retired.is_some() {
            let why = "the connection was given up";
            self.traffic.end(NoReply::Broken(why.into()));
        } else {
            // The first reason counts: if the stream ended, its reason was noted before.
            self.traffic.end(NoReply::Nonsense);
            left();
        }
        // Both calls wake tasks of users' executors, and a waker may panic. The tick ends requests on a user's own client, of which
        // the driver may still run.
        catch_panic(|| drop(driver));
        catch_panic(|| self.traffic.tick.notify_waiters());
    }
}
