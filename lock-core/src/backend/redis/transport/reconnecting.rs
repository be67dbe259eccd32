//! The connection to one server, which is watched, and replaced when it ends.
//!
//! A half-open connection looks like an idle one. The kernel detects it by keepalive and the user time-out. A connection with
//! requests in flight and no reply for two command time-outs is replaced, too.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::timeout;

use crate::{
    backend::{
        in_flight::ConnectionId,
        redis::transport::{
            CLOCK,
            address::Address,
            capabilities::Capabilities,
            command::Arg,
            connection::{Connection, CurrentConnection},
            connection_events::{ConnectionEvents, RepliesOnly},
            errors,
            handshake::Purpose,
            known_primary::PrimaryFinder,
            lifecycle::{Attempt, Lifecycle, Wanted, since_then},
            reply,
            traffic::NoReply,
        },
        timing::Timing,
    },
    failure::Failure,
    runtime::{executor::spawn_detached, jitter::jittered, mutex::Mutex},
    telemetry,
};

/// Connects, and reconnects, to one server. The decisions are made in `lifecycle.rs`, and connections in `opening.rs`.
#[derive(Debug)]
pub(crate) struct ReconnectingConnection {
    /// The address of the server. With sentinels, only its other settings count, because the sentinels name the host and port.
    address: Address,
    /// The sentinels that know where the server is.
    sentinels: Option<Arc<dyn PrimaryFinder>>,
    pub(super) purpose: Purpose,
    timing: Timing,
    pub(super) events: Arc<dyn ConnectionEvents>,
    /// Locked during a transaction, and while the connection is reauthenticated: an AUTH in a transaction would only be queued.
    pub(super) transaction: Arc<tokio::sync::Mutex<()>>,
    /// The smoothed round-trip time, in nanoseconds. Zero if not known.
    pub(super) round_trip: Arc<AtomicU64>,
    pub(super) lifecycle: Mutex<Lifecycle<Arc<CurrentConnection>>>,
    /// The number of connections that have ended or were abandoned.
    pub(crate) losses: AtomicU64,
}

pub(crate) type Opened = Result<Arc<CurrentConnection>, Failure>;

impl ReconnectingConnection {
    pub(crate) fn new(
        address: Address,
        sentinels: Option<Arc<dyn PrimaryFinder>>,
        purpose: Purpose,
        timing: Timing,
        events: Arc<dyn ConnectionEvents>,
    ) -> Self {
        Self {
            address,
            sentinels,
            purpose,
            timing,
            events,
            transaction: Arc::default(),
            round_trip: Arc::default(),
            lifecycle: Mutex::default(),
            losses: AtomicU64::new(0),
        }
    }

    /// Makes a connection to the same server for another purpose.
    pub(crate) fn another(&self, purpose: Purpose, timing: Timing) -> Self {
        Self::new(
            self.address().clone(),
            self.sentinels.clone(),
            purpose,
            timing,
            Arc::new(RepliesOnly),
        )
    }

    /// Returns a section of the server's `INFO`. `None` means that the server refuses it, or that there is a proxy that must not
    /// be asked.
    pub(crate) async fn info(
        self: &Arc<Self>,
        section: &str,
        within: Duration,
    ) -> Result<Option<String>, Failure> {
        if !self.capabilities(within).await?.forwards_all {
            return Ok(None);
        }
        let words = [Arg::Text("INFO"), Arg::Text(section)];
        let (_, reply) = self.send(&[&words], within, None).await?;
        Ok(reply::info(&reply))
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the sentinels that know where the server is; `None` if it is where the address says.
    pub(crate) fn sentinels(&self) -> Option<&Arc<dyn PrimaryFinder>> {
        self.sentinels.as_ref()
    }

    pub(crate) fn timing(&self) -> Timing {
        self.timing
    }

    /// Returns the mutex that is locked during a transaction on this connection.
    pub(crate) fn transaction(&self) -> &tokio::sync::Mutex<()> {
        &self.transaction
    }

    /// Returns the commands available for locks here. Connects if necessary.
    pub(crate) async fn capabilities(
        self: &Arc<Self>,
        within: Duration,
    ) -> Result<Capabilities, Failure> {
        self.ready_within(within).await?.capabilities()
    }

    /// Returns the current connection, or a new one.
    ///
    /// # Cancel safety
    ///
    /// A separate task makes the connection, so dropping the future leaves it to the next caller.
    pub(crate) async fn current(self: &Arc<Self>) -> Opened {
        if let Some(current) = self.snapshot() {
            return Ok(current);
        }
        // The mutex is unlocked after this line: a runtime that is shutting down drops the task below at once, and dropping it
        // locks the mutex.
        let wanted = self.lifecycle.lock().wanted(CLOCK.now());
        let attempt = match wanted {
            Wanted::Known(opened) => return opened,
            Wanted::Wait(attempt) => attempt,
            Wanted::Begin(attempt) => {
                // A separate task, since the first caller may be a renewal, whose time-out is shorter than that of a connect.
                spawn_detached(Unfinished(self.clone(), attempt.clone()).connect());
                attempt
            }
        };
        attempt.wait().await.clone()
    }

    fn install(self: &Arc<Self>, current: CurrentConnection) -> Opened {
        let current = Arc::new(current);
        // The connection may have ended since its handshake. If that counted as a success, new ones would be made again and
        // again without a pause.
        if current.connection.traffic.has_ended() {
            return Err(Failure::not_now(format!(
                "the connection to {} broke as soon as it was made",
                self.address()
            )));
        }
        let mut lifecycle = self.lifecycle.lock();
        lifecycle.made(current.clone(), CLOCK.now());
        current.connection.in_use.store(true, Ordering::Release);
        drop(lifecycle);
        tracing::debug!(server = self.address().shown(), "connected");
        if self.keeps_locks() {
            self.note_reached();
        }
        self.events.connected();
        Ok(current)
    }

    /// Returns `true` if push messages arrive. Without a connection, they are assumed to arrive on the next one.
    pub(crate) fn is_subscribed(&self) -> bool {
        let lifecycle = self.lifecycle.lock();
        lifecycle
            .current()
            .is_none_or(|current| current.known.is_subscribed)
    }

    pub(crate) fn events(&self) -> &dyn ConnectionEvents {
        &*self.events
    }

    /// Notes that nothing more is sent on a connection.
    pub(super) fn note_left(self: &Arc<Self>, connection: &Connection) {
        self.forget(connection.id);
        if !connection.in_use.load(Ordering::Acquire) {
            return;
        }
        self.events.disconnected();
        if self.keeps_locks() && self.lifecycle.lock().reachability.broke(CLOCK.now()) {
            spawn_detached(make_the_next(Arc::downgrade(self)));
        }
    }

    /// Returns `true` if this is the connection of the manager's thread for locks.
    fn keeps_locks(&self) -> bool {
        matches!(self.purpose, Purpose::Locks | Purpose::LocksOnly)
    }

    fn note_out_of_reach(&self, cause: &Failure) {
        if !self.lifecycle.lock().reachability.failed() {
            return;
        }
        let server = self.address().shown();
        self.events.out_of_reach(server, &cause.text());
    }

    fn note_reached(self: &Arc<Self>) {
        let away = self.lifecycle.lock().reachability.returned(CLOCK.now());
        let server = self.address().shown();
        let Some(away) = away else {
            return telemetry::reached(server);
        };
        telemetry::out_of_reach_no_more(server);
        let (this, within) = (self.clone(), self.reply_within());
        spawn_detached(async move {
            let info = this.info("server", within).await.ok().flatten();
            let info = info.unwrap_or_default();
            let said = since_then(reply::info_field(&info, "uptime_in_seconds"), away);
            tracing::info!(server = this.address().shown(), ?away, "{said}");
        });
    }

    /// Never uses a connection again.
    pub(crate) fn forget(&self, id: ConnectionId) {
        self.forget_if(|current| current.connection.id == id);
    }

    /// Ends the connection if the form of a reply does not fit its request, which shows that replies were lost, and that all
    /// later ones would be attributed to the wrong requests.
    pub(crate) fn expect_its_form<T>(&self, id: ConnectionId, read: &Result<T, Failure>) {
        if !read.as_ref().is_err_and(errors::is_nonsense) {
            return;
        }
        let current = self.lifecycle.lock().current().cloned();
        if let Some(current) = current.filter(|current| current.connection.id == id) {
            let server = self.address().shown();
            tracing::warn!(
                server,
                "replies were lost on the connection; making a new one"
            );
            current.connection.end(NoReply::misplaced());
            self.forget(id);
        }
    }

    /// Leaves a primary if the latest choice in the sentinels' replies has replaced it.
    pub(crate) fn leave_if_replaced(&self) {
        let is_replaced = |current: &Arc<CurrentConnection>| {
            let found = self.sentinels.as_ref().zip(current.found.as_ref());
            found.is_some_and(|(sentinels, found)| !sentinels.is_still(found))
        };
        if self.forget_if(is_replaced) {
            tracing::warn!(
                server = self.address().shown(),
                "the sentinels name another primary: connecting to it"
            );
        }
    }

    fn forget_if(&self, is_meant: impl FnOnce(&Arc<CurrentConnection>) -> bool) -> bool {
        let broken = || {
            let server = self.address();
            Failure::not_now(format!(
                "connections to {server} break as soon as they are made"
            ))
        };
        let taken = self.lifecycle.lock().take_if(is_meant, CLOCK.now(), broken);
        let Some(current) = taken else {
            return false;
        };
        self.losses.fetch_add(1, Ordering::AcqRel);
        // The watch reports the end, because this may be the user's thread in the middle of a request.
        current.connection.traffic.retire();
        true
    }

    /// Returns `true` if there is a connection now.
    pub(crate) fn is_up(&self) -> bool {
        self.snapshot().is_some()
    }

    /// Returns the current connection, with everything known about it.
    pub(crate) fn snapshot(&self) -> Option<Arc<CurrentConnection>> {
        let current = self.lifecycle.lock().current()?.clone();
        if !current.connection.traffic.has_ended() {
            return Some(current);
        }
        // Its watch has not reported the end yet.
        self.forget(current.connection.id);
        None
    }

    /// Replaces the connection if no request is in flight, because another one to the same server has ended. Requests in flight
    /// would show whether it is dead.
    pub(crate) fn doubt(&self) {
        self.forget_if(|current| current.connection.traffic.in_flight() == 0);
    }

    /// Returns `true` if there is no connection, none is being made, and none was tried within `pause`.
    pub(crate) fn is_to_be_made(&self, pause: Duration) -> bool {
        self.lifecycle.lock().is_to_be_made(pause, CLOCK.now())
    }
}

/// The pause between attempts while a server is unreachable and no request makes a connection.
const RETURN_PAUSE: Duration = Duration::from_secs(1);

/// Opens the next connection, so that the return of a server is noticed without a request. Tries once a second, until
/// there is a connection or the manager has ended.
async fn make_the_next(weak: Weak<ReconnectingConnection>) {
    while let Some(reconnecting) = weak.upgrade() {
        // The connection may have ended again before this task was polled. In that case, its end has started no other task.
        if reconnecting.current().await.is_ok() && reconnecting.is_up() {
            return reconnecting.lifecycle.lock().reachability.returns_no_more();
        }
        drop(reconnecting);
        tokio::time::sleep(jittered(RETURN_PAUSE)).await;
    }
}

/// The task that connects. Its drop ends the attempt, even after a panic in a resolver or a verifier of the user's client, so that
/// the next caller connects.
struct Unfinished(
    Arc<ReconnectingConnection>,
    Arc<Attempt<Arc<CurrentConnection>>>,
);

impl Unfinished {
    async fn connect(self) {
        let reconnecting = &self.0;
        let within = reconnecting.timing().connect_timeout;
        let opened = timeout(within, reconnecting.open()).await;
        let late = || Err(errors::unconnected(reconnecting.address(), within));
        let installed = opened
            .unwrap_or_else(|_| late())
            .and_then(|current| reconnecting.install(current));
        self.end(installed.map_err(|failure| match failure {
            // The settings worked before and are wrong now, for example because a password was replaced or a certificate
            // expired.
            Failure::Invalid(reason) if reconnecting.lifecycle.lock().has_connected() => {
                Failure::refused(reason.to_string())
            }
            failure => failure,
        }));
    }

    fn end(&self, result: Opened) {
        let Self(reconnecting, attempt) = self;
        if let Err(failure) = &result {
            reconnecting.note_out_of_reach(failure);
        }
        let failure = result.as_ref().err().cloned();
        reconnecting.lifecycle.lock().ended(failure, CLOCK.now());
        // The mutex is unlocked, since this wakes the waiters.
        drop(attempt.set(result));
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.1.initialized() {
            let why = "making a connection panicked, or the runtime that makes it has ended";
            self.end(Err(Failure::not_now(why)));
        }
    }
}

impl Drop for ReconnectingConnection {
    /// Closes the connection: a node that left its cluster needs none, and its gauge would otherwise report it as unreachable
    /// forever.
    fn drop(&mut self) {
        self.forget_if(|_| true);
        let is_out_of_reach = self.lifecycle.lock().reachability.is_out_of_reach();
        if is_out_of_reach {
            telemetry::out_of_reach_no_more(self.address().shown());
        }
    }
}
