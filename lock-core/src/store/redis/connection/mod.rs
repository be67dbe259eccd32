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
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, atomic::AtomicBool},
    task::Poll,
    time::Duration,
};

use redis::{Pipeline, RedisResult, Value, aio::MultiplexedConnection};
use tokio::{
    task::coop::unconstrained,
    time::{MissedTickBehavior, interval},
};

use crate::{
    runtime::{
        catch_panic::catch_panic,
        clock::{Clock, Moment},
    },
    store::{
        in_flight::ConnectionId,
        redis::connection::{
            shared_driver::{SharedDriver, gathering::CROWD},
            wire::{
                command::{Arg, command, in_one_message},
                driver::{Driver, shielded},
                traffic::{NoReply, Traffic},
            },
        },
    },
};

mod authentication;
pub(crate) mod capabilities;
pub(crate) mod delete_if;
pub(crate) mod errors;
pub(crate) mod exchange;
pub(crate) mod handshake;
pub(crate) mod known_primary;
pub(crate) mod opening;
pub(crate) mod pub_sub;
pub(crate) mod reachability;
pub(crate) mod reconnecting;
pub(crate) mod sentinel;
mod session;
pub(crate) mod shared_driver;
#[cfg(all(test, unix))]
mod shared_requests;
pub(crate) mod subscribed_channels;
pub(crate) mod wire;

pub(super) const CLOCK: Clock = Clock::Boot;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    /// Each request has a clone.
    handle: MultiplexedConnection,
    traffic: Arc<Traffic>,
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
        sent: Moment,
        until: Option<Moment>,
    ) -> Result<Vec<Value>, NoReply> {
        let _counted = self.traffic.begin(sent).ok_or(NoReply::NotSent)?;
        if let Some(shared) = &self.shared {
            // This request may have to arrive behind one of those.
            shared.gathering.leave();
        }
        let mut handle = self.handle.clone();
        let replies = pin!(handle.send_packed_commands(commands, 0, commands.len()));
        self.reply(replies, until).await
    }

    /// Whether so many requests are in flight that those for free locks leave in one message.
    pub(super) fn is_crowded(&self) -> bool {
        self.shared.is_some() && CROWD.contains(&self.traffic.in_flight())
    }

    /// Waits for the reply to a request, which leaves when this future is first polled, on any thread.
    ///
    /// If no reply has come at `until`, the result is [`NoReply::Late`], at most an eighth of a command time-out later.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before its first poll, nothing is sent. If it is dropped later, the commands may be executed.
    async fn reply<T>(
        &self,
        reply: Pin<&mut impl Future<Output = RedisResult<T>>>,
        until: Option<Moment>,
    ) -> Result<T, NoReply> {
        let traffic = &*self.traffic;
        // The request leaves even if the task has used up its budget of tokio.
        let reply = unconstrained(in_time(reply, until, traffic, self.shared.as_ref())).await?;
        if reply.is_ok() {
            if self.shared.is_none() {
                // On a client of the user's. A stream of ours notices the bytes themselves.
                traffic.note_bytes();
            }
            traffic.note_complete();
        }
        // The stream of a shared driver notes why it ends. Without a reason, the driver has ended by itself: what came is no reply.
        let ended_by_itself = || match self.shared {
            Some(_) => NoReply::Nonsense,
            None => NoReply::Broken("the connection has ended".into()),
        };
        reply.map_err(|_| traffic.ended().unwrap_or_else(ended_by_itself))
    }

    /// Sends one or more commands in one message and waits for their replies, without a time-out of its own.
    pub(super) async fn ask_all(&self, commands: &[&[Arg<'_>]]) -> Result<Vec<Value>, NoReply> {
        let commands = in_one_message(commands.iter().map(|words| command(&[words])));
        self.several(&commands, CLOCK.now(), None).await
    }

    /// Polls the crate's driver until the connection is over.
    ///
    /// `silent` is called after a reply was late, and while requests are in flight and nothing came for `patience`. `left` is
    /// called once, as soon as nothing more is sent on this connection.
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
                () = self.traffic.retired.notified() => {
                    retired.get_or_insert_with(|| CLOCK.now());
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
            let is_idle = self.is_idle();
            if retired.is_some_and(|retired| is_idle || CLOCK.now() >= retired.after(patience)) {
                break;
            }
        }
        self.traffic.end(if retired.is_some() {
            NoReply::Broken("the connection was given up".into())
        } else {
            // The first reason counts: if the stream ended, its reason was noted before.
            NoReply::Nonsense
        });
        if let Some(left) = left {
            left();
        }
        // Both calls wake tasks of users' executors, and a waker may panic. The tick ends requests on a user's own client, of which
        // the driver may still run.
        catch_panic(|| drop(driver));
        catch_panic(|| self.traffic.tick.notify_waiters());
    }

    /// Sends nothing more on this connection. It closes when all replies have come, or after the `patience` of its driver.
    pub(super) fn retire(&self) {
        self.traffic.retire();
    }

    /// Whether a request may be sent: the connection has neither ended nor been retired.
    pub(crate) fn is_usable(&self) -> bool {
        !self.traffic.is_retired() && !self.has_ended()
    }

    /// Whether a task of a user's runtime reads, or the connection needs none.
    pub(super) fn has_reader(&self) -> bool {
        self.shared
            .as_ref()
            .is_none_or(|shared| shared.has_reader())
    }

    /// Whether no request is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.traffic.in_flight() == 0
    }

    pub(super) fn has_ended(&self) -> bool {
        self.traffic.has_ended()
    }
}

/// Ends a request with its reply, with the end of its connection, or when it is late. Its timer is the driver's tick, so the future
/// contains nothing of the caller's runtime.
///
/// The end of the connection does not always end the crate's future. The driver of a user's own client may run for ever. And a
/// request that reaches the queue while another thread drops the driver is lost: no side sees it any more.
async fn in_time<T>(
    mut reply: Pin<&mut impl Future<Output = T>>,
    until: Option<Moment>,
    traffic: &Traffic,
    shared: Option<&Arc<SharedDriver>>,
) -> Result<T, NoReply> {
    // Each is made before the connection is checked: the tick that follows its end wakes those that exist by then.
    let mut tick = pin!(traffic.tick.notified());
    // The first poll sends the request.
    let first = if let Some(shared) = shared {
        shared.send(reply.as_mut(), traffic.in_flight()).await
    } else {
        let first = poll_fn(|context| Poll::Ready(reply.as_mut().poll(context)));
        match first.await {
            Poll::Ready(reply) => Some(reply),
            Poll::Pending => {
                if until.is_some() && traffic.note_queued() {
                    std::thread::yield_now();
                }
                None
            }
        }
    };
    if let Some(reply) = first {
        return Ok(reply);
    }
    // Bounded by the end of the connection, and by `until`.
    loop {
        if let Some(why) = traffic.ended() {
            // The last thing that came may be this reply.
            let last = poll_fn(|context| Poll::Ready(reply.as_mut().poll(context))).await;
            return match last {
                Poll::Ready(reply) => Ok(reply),
                Poll::Pending => Err(why),
            };
        }
        tokio::select! {
            biased;
            reply = reply.as_mut() => return Ok(reply),
            () = tick.as_mut() => tick.set(traffic.tick.notified()),
        }
        if until.is_some_and(|until| CLOCK.now() >= until) {
            traffic.note_late();
            return Err(NoReply::Late);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far longer than any step here takes.
    const HANG: Duration = Duration::from_secs(30);

    /// A request that the connection's end does not end, since the driver is gone or belongs to another runtime.
    async fn ends(traffic: &Traffic, first_poll: impl FnOnce()) {
        let mut first_poll = Some(first_poll);
        let reply = pin!(poll_fn(|_| -> Poll<()> {
            if let Some(first_poll) = first_poll.take() {
                first_poll();
            }
            Poll::Pending
        }));
        let request = tokio::time::timeout(HANG, in_time(reply, None, traffic, None));
        let ended = request.await.expect("it waits for no later tick");
        assert!(matches!(ended, Err(NoReply::Nonsense)), "{ended:?}");
    }

    fn end(traffic: &Traffic) {
        traffic.end(NoReply::Nonsense);
        traffic.tick.notify_waiters();
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_on_a_connection_that_has_ended_has_a_result() {
        let traffic = Traffic::new();
        end(&traffic);
        ends(&traffic, || {}).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_sent_while_another_thread_ends_the_connection_has_a_result() {
        let traffic = Traffic::new();
        ends(&traffic, || end(&traffic)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_reply_that_came_just_before_the_end_of_its_connection_counts() {
        let (traffic, mut polls) = (Traffic::new(), 0);
        let reply = pin!(poll_fn(|_| {
            polls += 1;
            if polls > 1 {
                return Poll::Ready("the reply");
            }
            end(&traffic);
            Poll::Pending
        }));
        let replied = in_time(reply, None, &traffic, None).await;
        assert!(matches!(replied, Ok("the reply")), "{replied:?}");
    }
}
