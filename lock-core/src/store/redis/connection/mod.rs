//! One connection: a handle and a driver of the crate `redis`, watched from outside.
//!
//! The handle puts requests into a queue; the driver writes them in their order and assigns the replies. The driver runs on the
//! manager's thread. A request is a future that may be polled anywhere. What is relied on here, since the crate does not document
//! it, is held by the tests in `facts.rs`:
//!
//! - A handle is one socket for its life. It never reconnects, and sends nothing twice.
//! - Requests leave in the order in which their futures were first polled, as long as the queue has room. Those that wait for room
//!   may overtake each other, so what must arrive behind another request is sent after its reply, or asks again.
//! - A request whose future is dropped before the driver took it never leaves. One that is dropped later is executed, and what is
//!   sent after the drop arrives behind it.
//! - After the waker of a request has panicked, the driver can be polled on.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, atomic::AtomicBool},
    task::Poll,
    time::Duration,
};

use redis::{ErrorKind, RedisError, Value, aio::MultiplexedConnection};
use tokio::{
    sync::Notify,
    task::coop::unconstrained,
    time::{MissedTickBehavior, interval},
};

use crate::{
    runtime::{
        catch_panic::catch_panic,
        clock::{Clock, Moment},
        mutex::Mutex,
    },
    store::{
        in_flight::ConnectionId,
        redis::connection::wire::{
            command::{Arg, Outgoing, command, pipeline},
            traffic::{NoReply, Traffic},
        },
    },
};

mod authentication;
pub(crate) mod capabilities;
pub(crate) mod errors;
#[cfg(all(test, unix))]
mod facts;
pub(crate) mod handshake;
pub(crate) mod opening;
pub(crate) mod permissions;
pub(crate) mod pub_sub;
pub(crate) mod reconnecting;
pub(crate) mod sentinel;
#[cfg(feature = "cluster")]
pub(crate) mod subscribed_channels;
pub(crate) mod wire;

pub(super) const CLOCK: Clock = Clock::Boot;

/// So many wakers that panic, one after the other, are more than a broken executor has.
const MOST_PANICS: u32 = 100;

/// What reads and writes, of the crate `redis`.
pub(super) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The future of the replies to a request.
pub(super) type Request = Pin<Box<dyn Future<Output = Result<Vec<Value>, NoReply>> + Send>>;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    /// `None` after it was retired: the driver ends when the requests in flight, which have handles of their own, have ended.
    handle: Mutex<Option<MultiplexedConnection>>,
    traffic: Arc<Traffic>,
    /// Whether a PING is in flight that decides whether the connection is dead.
    pub(super) probed: AtomicBool,
    /// Wakes the driver after the connection was retired.
    retired: Notify,
    /// Whether requests find it: then its end matters to others.
    pub(super) in_use: AtomicBool,
}

impl Connection {
    pub(super) fn new(handle: MultiplexedConnection, traffic: Arc<Traffic>) -> Self {
        Self {
            id: ConnectionId::next(),
            handle: Mutex::new(Some(handle)),
            traffic,
            probed: AtomicBool::new(false),
            retired: Notify::new(),
            in_use: AtomicBool::new(false),
        }
    }

    /// A request, which leaves when its future is first polled, on whatever thread. One reply for each command.
    ///
    /// With `until`, a reply that comes later is [`NoReply::Late`], within an eighth of a command time-out.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it was polled sends nothing; later, the commands may be executed.
    pub(super) fn request(&self, outgoing: Outgoing, until: Option<Moment>) -> Request {
        let handle = self.handle.lock().clone();
        let traffic = self.traffic.clone();
        // Boxed here: a future that contains another one by value takes twice its room at each level.
        Box::pin(async move {
            let mut handle = handle.ok_or(NoReply::NotSent)?;
            let _counted = traffic.begin().ok_or(NoReply::NotSent)?;
            let reply = pin!(async {
                match &outgoing {
                    Outgoing::One(one) => {
                        handle.send_packed_command(one).await.map(|one| vec![one])
                    }
                    Outgoing::Several(all) => handle.send_packed_commands(all, 0, all.len()).await,
                }
            });
            // The request leaves also if the task has used up its share of tokio's time.
            let reply = match until {
                None => unconstrained(reply).await,
                Some(until) => unconstrained(in_time(reply, until, &traffic)).await?,
            };
            reply
                .inspect(|_| traffic.note_complete())
                .map_err(|error| no_reply(&error, &traffic))
        })
    }

    /// Sends commands in one message, one at least, and waits for their replies, without a time-out of its own.
    pub(super) async fn ask_all(&self, commands: &[&[Arg<'_>]]) -> Result<Vec<Value>, NoReply> {
        let commands = commands.iter().map(|words| command(&[words]));
        self.request(pipeline(commands), None).await
    }

    /// Polls the crate's driver until the connection is over.
    ///
    /// `silent` is called after a reply was late, and while requests are in flight and nothing came for `patience`. `left` is called
    /// once, as soon as nothing more is sent here.
    pub(super) async fn drive(
        &self,
        mut driver: Driver,
        patience: Duration,
        silent: impl Fn() + Send,
        left: impl FnOnce() + Send,
    ) {
        let mut tick = interval(patience / 8);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut retired, mut left) = (None::<Moment>, Some(left));
        loop {
            tokio::select! {
                biased;
                () = shielded(&mut driver) => break,
                () = self.retired.notified() => {
                    retired = Some(CLOCK.now());
                    if let Some(left) = left.take() {
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
            if retired.is_some_and(|retired| CLOCK.now() >= retired.after(patience)) {
                break;
            }
        }
        self.traffic.end(if retired.is_some() {
            NoReply::Broken("the connection was given up".into())
        } else {
            // The stream has noted its own end before.
            NoReply::Nonsense
        });
        if let Some(left) = left {
            left();
        }
        // Both wake tasks of users' executors: a client of the user's may still drive the requests in flight.
        catch_panic(|| drop(driver));
        catch_panic(|| self.traffic.tick.notify_waiters());
    }

    /// Sends nothing more here. It closes when all replies have come, or after some time.
    pub(super) fn retire(&self) {
        let handle = self.handle.lock().take();
        // Not under the mutex: dropping the last handle wakes the driver.
        drop(handle);
        self.retired.notify_one();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.traffic.ended().is_some()
    }
}

/// Polls the crate's driver. It wakes tasks of users' executors: if a waker panics, the driver goes on with the next reply. If it
/// panics again and again, it is over.
async fn shielded(driver: &mut Driver) {
    let mut panics = 0;
    poll_fn(|context| {
        let mut polled = None;
        catch_panic(|| polled = Some(driver.as_mut().poll(context)));
        panics = if polled.is_some() { 0 } else { panics + 1 };
        match polled {
            Some(polled) => polled,
            None if panics > MOST_PANICS => Poll::Ready(()),
            None => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await;
}

/// Ends a request that is late. Its timer is the driver's tick: the future contains nothing of the caller's runtime.
async fn in_time<T>(
    mut reply: Pin<&mut impl Future<Output = T>>,
    until: Moment,
    traffic: &Traffic,
) -> Result<T, NoReply> {
    // The first poll sends it.
    let first = poll_fn(|context| Poll::Ready(reply.as_mut().poll(context)));
    if let Poll::Ready(reply) = first.await {
        return Ok(reply);
    }
    if traffic.note_queued() {
        std::thread::yield_now();
    }
    // Ends with the reply, or with a tick after the time.
    loop {
        tokio::select! {
            biased;
            reply = reply.as_mut() => return Ok(reply),
            () = traffic.tick.notified() => {
                // A client of the user's may have a driver that never ends.
                if let Some(why) = traffic.ended() {
                    return Err(why);
                }
                if CLOCK.now() >= until {
                    traffic.note_late();
                    return Err(NoReply::Late);
                }
            }
        }
    }
}

fn no_reply(error: &RedisError, traffic: &Traffic) -> NoReply {
    if error.kind() == ErrorKind::Parse {
        traffic.end(NoReply::Nonsense);
    }
    let ended = || NoReply::Broken("the connection has ended".into());
    traffic.ended().unwrap_or_else(ended)
}
