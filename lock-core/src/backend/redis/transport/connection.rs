//! One connection: a session of ours, or a handle of a user's own client.
//!
//! Each has one socket for its whole life, and executes requests first in, first out. For a handle of the crate
//! `redis`, this relies on facts that the crate does not document; the tests in `facts.rs` check them. After a late
//! reply, the later replies on a handle cannot be verified, so a late reply ends such a connection.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, atomic::AtomicBool},
    task::{Poll, ready},
    time::Duration,
};

use redis::{Value, aio::MultiplexedConnection};
use tokio::{
    task::coop::unconstrained,
    time::{MissedTickBehavior, interval, sleep},
};

use crate::{
    backend::{
        in_flight::{ConnectionId, InFlight},
        redis::transport::{
            CLOCK,
            address::Address,
            command::Commands,
            exchange::{Change, Compose, MessagePart, PartReply, Subject},
            handshake::Known,
            known_primary::KnownPrimary,
            session::Session,
            traffic::{NoReply, Traffic},
        },
    },
    moment::Moment,
    runtime::catch_panic::catch_panic,
};

/// The longest interval at which requests check whether they are late.
const LONGEST_TICK: Duration = Duration::from_millis(100);

/// How long the task of a session has to run before the manager's thread takes over its work.
const SHORT_WAIT: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: ConnectionId,
    line: Line,
    pub(crate) traffic: Arc<Traffic>,
    /// `true` if requests may use the connection. The end of an unused connection is not reported.
    pub(super) in_use: AtomicBool,
}

/// A connection that is ready for use, with everything known about its server. Dropping this closes the connection.
#[derive(Debug)]
pub(crate) struct CurrentConnection {
    pub(crate) connection: Arc<Connection>,
    /// The address of the server that the connection leads to.
    pub(crate) address: Address,
    /// The sentinels' reply by which the server was found.
    pub(crate) found: Option<KnownPrimary>,
    pub(crate) known: Known,
}

impl Drop for CurrentConnection {
    fn drop(&mut self) {
        self.connection.traffic.retire();
    }
}

/// The carrier of the requests.
#[derive(Debug)]
pub(super) enum Line {
    Session(Session),
    /// A handle of a user's own client, which drives it.
    Client(MultiplexedConnection),
}

impl Drop for Connection {
    /// Ends the session, since the manager's thread may have ended, and the watch with it.
    fn drop(&mut self) {
        if let Line::Session(session) = &self.line {
            session.end();
        }
    }
}

/// A request on a user's own client. Dropping it counts it as answered.
struct InClient<'a>(&'a Traffic);

impl Drop for InClient<'_> {
    fn drop(&mut self) {
        self.0.note_answered(1);
    }
}

impl Connection {
    pub(super) fn new(line: Line, traffic: Arc<Traffic>) -> Self {
        Self {
            id: ConnectionId::next(),
            line,
            traffic,
            in_use: AtomicBool::new(false),
        }
    }

    /// Returns the session, unless the connection belongs to a user's own client.
    pub(crate) fn session(&self) -> Option<&Session> {
        match &self.line {
            Line::Session(session) => Some(session),
            Line::Client(_) => None,
        }
    }

    /// Sends commands in one message, and waits for their replies, one for each: see [`reply`](Self::reply).
    pub(super) async fn several(
        &self,
        commands: Commands,
        in_flight: Option<&InFlight>,
        until: Option<Moment>,
    ) -> Result<Vec<Value>, NoReply> {
        let count = self.begin(in_flight)?;
        match &self.line {
            Line::Session(session) => self.reply(session.alone(commands, count), until).await,
            Line::Client(handle) => {
                let _counted = InClient(&self.traffic);
                let mut handle = handle.clone();
                let pipeline = commands.to_pipeline();
                let replies = handle.send_packed_commands(&pipeline, 0, commands.len());
                let replies = self.reply(async { replies.await.ok() }, until).await;
                match &replies {
                    Ok(_) => self.traffic.note_reply(CLOCK.now()),
                    // The handle has failed, or a late reply ends it.
                    Err(why) => self.traffic.end(why.clone()),
                }
                replies
            }
        }
    }

    /// Sends a request that may share a message with others, and waits for its reply: see [`reply`](Self::reply).
    pub(super) async fn part(
        &self,
        subject: Arc<dyn Subject>,
        change: Change,
        composer: &Arc<dyn Compose>,
        in_flight: &InFlight,
        until: Option<Moment>,
    ) -> Result<PartReply, NoReply> {
        let (part, reply) = MessagePart::new(subject, change);
        if let Line::Session(session) = &self.line {
            let count = self.begin(Some(in_flight))?;
            let reply = session.part(part, composer.clone(), reply, count);
            return self.reply(reply, until).await;
        }
        let (parts, mut commands) = (vec![part], Commands::default());
        composer.compose(&parts, &mut commands);
        let replies = self.several(commands, Some(in_flight), until);
        composer.distribute(parts, Box::pin(replies).await?);
        Ok(reply.await.unwrap_or_default())
    }

    /// Counts a request, and notes its connection before the first byte leaves.
    fn begin(&self, in_flight: Option<&InFlight>) -> Result<usize, NoReply> {
        let count = self.traffic.begin().ok_or(NoReply::NotSent)?;
        if let Some(in_flight) = in_flight {
            in_flight.note_sent_on(self.id);
        }
        Ok(count)
    }

    /// Waits for the reply to a request, which leaves when this future is first polled, on any thread.
    ///
    /// If no reply has arrived by `until`, the result is [`NoReply::Late`] at the next tick of the watch. This way the future
    /// depends on nothing of the caller's runtime.
    ///
    /// The end of the connection does not always end the future of the `redis` crate: the driver of a user's own client
    /// may run forever.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before its first poll, nothing is sent. If it is dropped later, the commands may still be
    /// executed.
    async fn reply<T>(
        &self,
        reply: impl Future<Output = Option<T>>,
        until: Option<Moment>,
    ) -> Result<T, NoReply> {
        let traffic = &*self.traffic;
        let mut reply = pin!(reply);
        // Created before the connection is checked, so that the tick that follows the connection's end is not missed.
        let mut tick = pin!(traffic.tick.notified());
        let broken = || NoReply::Broken("the connection has ended".into());
        // The request leaves even if the task has used up its tokio budget.
        unconstrained(poll_fn(|context| {
            if let Poll::Ready(reply) = reply.as_mut().poll(context) {
                let ended = || traffic.ended().unwrap_or_else(broken);
                return Poll::Ready(reply.ok_or_else(ended));
            }
            // Bounded by the end of the connection, and by `until`.
            loop {
                if let Some(why) = traffic.ended() {
                    // The last value that arrived may be this reply.
                    return Poll::Ready(match reply.as_mut().poll(context) {
                        Poll::Ready(Some(reply)) => Ok(reply),
                        _ => Err(why),
                    });
                }
                ready!(tick.as_mut().poll(context));
                tick.set(traffic.tick.notified());
                if until.is_some_and(|until| CLOCK.now() >= until) {
                    self.note_late();
                    return Poll::Ready(Err(NoReply::Late));
                }
            }
        }))
        .await
    }

    /// Verifies that the replies to all earlier requests match them. This is impossible on a handle of a user's own
    /// client.
    pub(super) fn probe(&self) {
        if let Line::Session(session) = &self.line {
            session.probe();
        }
    }

    /// Notes that a reply was late. If it is lost, all later ones are attributed to the wrong requests.
    pub(super) fn note_late(&self) {
        match &self.line {
            Line::Session(session) => session.probe(),
            Line::Client(_) => self.end(NoReply::Broken("a reply was late".into())),
        }
    }

    /// Ends the connection, and all requests on it.
    pub(super) fn end(&self, why: NoReply) {
        self.traffic.end(why);
        self.traffic.retire();
        if let Line::Session(session) = &self.line {
            session.end();
        }
        catch_panic(|| self.traffic.tick.notify_waiters());
    }

    /// Watches the connection until it is over, on the manager's thread.
    ///
    /// `silent` is called if no reply has arrived for two command time-outs while requests were in flight all the time, which
    /// means that the connection is dead. `left` is called once, as soon as nothing more is sent on this connection.
    pub(super) async fn watch(
        &self,
        command_timeout: Duration,
        silent: impl Fn() + Send,
        left: impl Fn() + Send,
    ) {
        let traffic = &*self.traffic;
        let pause = (command_timeout / 8).min(LONGEST_TICK);
        let mut tick = interval(pause);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut retired, mut polls) = (None::<Moment>, None);
        // Ticks are counted rather than time: while this process is stopped, the server is not silent.
        let (mut last, mut quiet) = (traffic.last_reply(), 0);
        while !traffic.has_ended() {
            tokio::select! {
                biased;
                // Polled first, because it is rarely ready, and changes may be frequent.
                _ = tick.tick() => {
                    catch_panic(|| traffic.tick.notify_waiters());
                    let replied = traffic.last_reply();
                    let is_quiet = traffic.in_flight() > 0 && replied == last;
                    (last, quiet) = (replied, if is_quiet { quiet + 1 } else { 0 });
                    if pause * quiet >= command_timeout * 2 {
                        silent();
                        let why = format!("no reply within {:?}", command_timeout * 2);
                        traffic.end(NoReply::Broken(why.into()));
                    }
                    polls = self.session().and_then(|session| session.take_over(polls));
                }
                () = traffic.changed.notified() => {}
            }
            if let Some(session) = self.session() {
                let is_urgent = session.is_urgent();
                let polled = session.take_over(None);
                if is_urgent {
                    sleep(SHORT_WAIT.min(pause)).await;
                    session.take_over(polled);
                }
            }
            if traffic.is_retired() {
                let since = *retired.get_or_insert_with(|| {
                    left();
                    CLOCK.now()
                });
                if traffic.in_flight() == 0 || CLOCK.now() >= since.after(command_timeout) {
                    break;
                }
            }
        }
        if retired.is_none() {
            left();
        }
        self.end(NoReply::Broken("the connection was given up".into()));
    }
}
