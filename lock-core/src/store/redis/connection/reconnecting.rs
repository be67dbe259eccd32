//! The connection to one server, watched and replaced.
//!
//! A half-open connection looks like an idle one. So each command has a time-out, after which a PING is sent. If nothing at all
//! comes back within a second time-out, the connection is replaced. See `exchange.rs`.

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Semaphore, time::timeout};

use crate::{
    runtime::{clock::Moment, executor::spawn_beside, jitter::jittered, mutex::Mutex},
    store::{
        Failure,
        in_flight::ConnectionId,
        redis::{
            address::Address,
            connection::{
                CLOCK, Connection,
                capabilities::Capabilities,
                delete_if::DeleteIfCell,
                errors,
                handshake::{CurrentConnection, Greeting, Purpose},
                opening,
                pub_sub::PubSubDispatch,
                reachability::{Between, Reachability},
                sentinel::{KnownPrimary, Sentinels},
                wire::{command::Arg, reply, round_trip::RoundTrip},
            },
        },
        timing::Timing,
    },
    telemetry,
};

/// After a failed connect the next one waits this long, so that many callers do not flood a server that is down.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// This many connections in a row may end within `RECONNECT_PAUSE`; the next one counts as a failure, too. Each new connection
/// causes renewals of the held locks. A server or proxy that closes connections because of them would be flooded.
const MOST_SHORT_LIVED: u32 = 3;

/// Connects, and reconnects, to one server.
#[derive(Debug)]
pub(crate) struct ReconnectingConnection {
    /// The address of the server. With sentinels, they give the host and port, and only its other settings count.
    pub(super) address: Address,
    /// The sentinels that know where the server is.
    sentinels: Option<Arc<Sentinels>>,
    purpose: Purpose,
    pub(super) timing: Timing,
    pub(super) dispatch: PubSubDispatch,
    /// Locked during a transaction, and while the connection is authenticated anew: an AUTH in a transaction would only be queued.
    pub(crate) transaction: Arc<tokio::sync::Mutex<()>>,
    pub(super) state: Mutex<ConnectionState>,
    pub(super) round_trip: RoundTrip,
    /// The command of the current connection by which a free lock is released.
    pub(crate) delete_if: DeleteIfCell,
    /// How many connections have ended or were given up.
    losses: AtomicU64,
    /// For the connection on which locks are kept; the others to the same server say nothing.
    reachability: Mutex<Reachability>,
    /// Whether a task makes the next connection.
    is_returning: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    current: Option<Arc<CurrentConnection>>,
    /// When the connection was made.
    since: Option<Moment>,
    /// How many connections in a row broke as soon as they were made.
    short_lived: u32,
    pub(super) last_failure: Option<(Moment, Failure)>,
    connecting: Option<Arc<Connecting>>,
}

pub(crate) type Opened = Result<Arc<CurrentConnection>, Failure>;

/// A connection that is being made; each caller that needs it waits within its own time-out.
#[derive(Debug)]
struct Connecting {
    result: OnceLock<Opened>,
    /// Has no permits, and is closed once there is a result. It wakes its waiters in the order in which they came; tokio's `watch`
    /// wakes them in random order.
    done: Semaphore,
}

impl ReconnectingConnection {
    pub(crate) fn new(
        address: Address,
        sentinels: Option<Arc<Sentinels>>,
        purpose: Purpose,
        timing: Timing,
        dispatch: PubSubDispatch,
    ) -> Self {
        Self {
            address,
            sentinels,
            purpose,
            timing,
            dispatch,
            transaction: Arc::default(),
            state: Mutex::default(),
            round_trip: RoundTrip::default(),
            delete_if: DeleteIfCell::default(),
            losses: AtomicU64::new(0),
            reachability: Mutex::default(),
            is_returning: AtomicBool::new(false),
        }
    }

    /// A connection to the same server for another purpose.
    pub(crate) fn another(&self, purpose: Purpose, timing: Timing) -> Self {
        Self::new(
            self.address.clone(),
            self.sentinels.clone(),
            purpose,
            timing,
            self.dispatch.of_nobody(),
        )
    }

    /// A connection to the same server for finding out the user's rights: in the first database, which every user may use.
    pub(crate) fn for_rights(&self) -> Arc<Self> {
        let mut reconnecting = self.another(Purpose::OtherCommands, self.timing);
        reconnecting.address.set_database(0);
        Arc::new(reconnecting)
    }

    /// What the server reports about itself.
    pub(crate) async fn greeting(self: &Arc<Self>, within: Duration) -> Greeting {
        if let Some(greeting) = self.snapshot().and_then(|now| now.greeting.clone()) {
            return greeting;
        }
        let words = [Arg::Text("INFO"), Arg::Text("server")];
        match self.send(&[&words], within, None).await {
            Ok((_, info)) => Greeting::of_info(&reply::info(&info).unwrap_or_default()),
            _ => Greeting::default(),
        }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// The sentinels that know where the server is; `None`: it is where the address says.
    pub(crate) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        self.sentinels.as_ref()
    }

    pub(crate) fn purpose(&self) -> Purpose {
        self.purpose
    }

    pub(crate) fn timing(&self) -> Timing {
        self.timing
    }

    pub(crate) fn round_trip(&self) -> Duration {
        self.round_trip.smoothed()
    }

    /// How long a reply may take.
    pub(crate) fn reply_within(&self) -> Duration {
        self.timing.reply_within(self.round_trip())
    }

    /// How long the reply to an acquire may take.
    pub(crate) fn acquire_within(&self, ttl: Duration) -> Duration {
        self.timing.acquire_within(self.round_trip(), ttl)
    }

    /// The commands by which locks are kept here; connects if need be.
    pub(crate) async fn capabilities(
        self: &Arc<Self>,
        within: Duration,
    ) -> Result<Capabilities, Failure> {
        let current = tokio::time::timeout(within, self.current()).await;
        let current = current.unwrap_or_else(|_| Err(errors::late(&self.address, within)))?;
        let none = || Failure::not_now("no locks are kept by this connection");
        current.capabilities.ok_or_else(none)
    }

    /// The current connection, or a new one.
    ///
    /// # Cancel safety
    ///
    /// A task of its own makes the connection: dropping the future leaves the connection to the next caller.
    pub(crate) async fn current(self: &Arc<Self>) -> Opened {
        if let Some(current) = self.snapshot() {
            return Ok(current);
        }
        let connecting = self.connecting()?;
        // An error means that the semaphore is closed, so there is a result.
        drop(connecting.done.acquire().await);
        let result = connecting.result.get();
        result.expect("it is set before `done`").clone()
    }

    /// Connects in a task of its own. The first caller may be a renewal, which has less time for its reply than a connect may take.
    fn connecting(self: &Arc<Self>) -> Result<Arc<Connecting>, Failure> {
        let mut state = self.state.lock();
        if let Some((at, failure)) = &state.last_failure
            && CLOCK.now().since(*at) < RECONNECT_PAUSE
        {
            return Err(failure.clone());
        }
        if let Some(connecting) = &state.connecting {
            return Ok(connecting.clone());
        }
        let connecting = Arc::new(Connecting {
            result: OnceLock::new(),
            done: Semaphore::new(0),
        });
        state.connecting = Some(connecting.clone());
        // Not under the mutex: a runtime that ends drops the task at once, which takes the mutex.
        drop(state);
        spawn_beside(Unfinished(self.clone(), connecting.clone()).connect());
        Ok(connecting)
    }

    fn install(self: &Arc<Self>, current: CurrentConnection) -> Opened {
        let current = Arc::new(current);
        // The connection may have ended since its handshake. If that counted as a success, it would be made anew again and again
        // without a pause.
        if current.connection.has_ended() {
            return Err(Failure::not_now(format!(
                "the connection to {} broke as soon as it was made",
                self.address.shown()
            )));
        }
        let mut state = self.state.lock();
        // A thread that saw no connection may have begun to connect just after another one was installed. The earlier one carries
        // requests, so it stays.
        if let Some(earlier) = &state.current
            && !earlier.connection.has_ended()
        {
            return Ok(earlier.clone());
        }
        let greeting = current.greeting.as_ref();
        self.delete_if.set(greeting.and_then(Greeting::delete_if));
        state.current = Some(current.clone());
        state.since = Some(CLOCK.now());
        current.connection.in_use.store(true, Ordering::Release);
        drop(state);
        current.address.note_spoke();
        tracing::debug!(server = self.address.shown(), "connected");
        if self.keeps_locks() {
            self.note_reached();
        }
        // Grants may have been published while there was no subscription.
        self.dispatch.note_connected();
        Ok(current)
    }

    /// Whether grants arrive. Without a connection, they are assumed to arrive on the next one.
    pub(crate) fn has_grants(&self) -> bool {
        let state = self.state.lock();
        state.current.as_ref().is_none_or(|current| current.grants)
    }

    /// Notes that a connection was given up, or has ended. Its driver calls this once.
    pub(super) fn note_left(self: &Arc<Self>, connection: &Connection) {
        self.forget(connection.id);
        if !connection.in_use.load(Ordering::Acquire) {
            return;
        }
        self.dispatch.note_disconnected();
        if self.keeps_locks() {
            self.reachability.lock().broke(CLOCK.now());
            if !self.is_returning.swap(true, Ordering::AcqRel) {
                spawn_beside(Returning(Arc::downgrade(self)).work());
            }
        }
    }

    /// Whether it is the connection of the manager's thread on which locks are kept.
    fn keeps_locks(&self) -> bool {
        matches!(self.purpose, Purpose::Locks | Purpose::LocksOnly)
    }

    fn note_out_of_reach(&self, cause: &Failure) {
        if !self.reachability.lock().failed() {
            return;
        }
        let server = self.address.shown();
        let held = self.dispatch.held();
        let cause = cause.text();
        telemetry::out_of_reach(server, &cause, held.count, held.first_ends_in);
    }

    fn note_reached(self: &Arc<Self>) {
        let away = self.reachability.lock().returned(CLOCK.now());
        telemetry::reached(self.address.shown());
        let Some(away) = away else { return };
        let (this, within) = (self.clone(), self.reply_within());
        spawn_beside(async move {
            let words = [Arg::Text("INFO"), Arg::Text("server")];
            let info = this.send(&[&words], within, None).await.ok();
            let info = info.and_then(|(_, info)| reply::info(&info));
            let uptime = info
                .as_deref()
                .and_then(|info| reply::info_field(info, "uptime_in_seconds"));
            let between = Between::of(uptime, away);
            tracing::info!(server = this.address.shown(), ?away, "{}", between.says());
        });
    }

    /// Never uses a connection again.
    pub(crate) fn forget(&self, id: ConnectionId) {
        self.forget_if(|current| current.connection.id == id);
    }

    /// Leaves a primary that another one has replaced.
    pub(crate) fn leave_if_replaced(&self, now: &KnownPrimary) {
        let is_replaced = |current: &mut Arc<CurrentConnection>| {
            current
                .found
                .as_ref()
                .is_some_and(|old| !old.is_same_server(now))
        };
        if self.forget_if(is_replaced) {
            tracing::warn!(
                server = self.address.shown(),
                "the sentinels name another primary: connecting to it"
            );
        }
    }

    fn forget_if(&self, is_meant: impl FnOnce(&mut Arc<CurrentConnection>) -> bool) -> bool {
        let mut state = self.state.lock();
        let Some(current) = state.current.take_if(is_meant) else {
            return false;
        };
        let now = CLOCK.now();
        let is_short = |since| now.since(since) < RECONNECT_PAUSE;
        state.short_lived = match state.since {
            Some(since) if is_short(since) => state.short_lived + 1,
            _ => 0,
        };
        if state.short_lived > MOST_SHORT_LIVED {
            let failure = Failure::not_now(format!(
                "connections to {} break as soon as they are made",
                self.address.shown()
            ));
            state.last_failure = Some((now, failure));
        }
        drop(state);
        self.losses.fetch_add(1, Ordering::AcqRel);
        // Its driver reports the end: this may be a thread of the user, in the middle of a request.
        current.connection.retire();
        true
    }

    /// Whether there is a connection now.
    pub(crate) fn is_up(&self) -> bool {
        self.snapshot().is_some()
    }

    /// The connection that there is now, and what is known of it.
    pub(crate) fn snapshot(&self) -> Option<Arc<CurrentConnection>> {
        let current = self.state.lock().current.clone()?;
        if !current.connection.has_ended() {
            return Some(current);
        }
        // Its driver has not reported the end yet.
        self.forget(current.connection.id);
        None
    }

    /// How many connections have ended or were given up.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// Doubts the connection, since another one to the same server has ended. It is made anew if no request is in flight. Else this
    /// finds out whether it is dead. Runs on the manager's thread.
    pub(crate) fn doubt(self: &Arc<Self>) {
        let is_idle = |current: &mut Arc<CurrentConnection>| current.connection.is_idle();
        if !self.forget_if(is_idle)
            && let Some(current) = self.snapshot()
        {
            self.suspect(&current.connection, self.reply_within());
        }
    }

    /// Whether a task of a runtime reads the connection, or there is none yet.
    pub(crate) fn has_reader(&self) -> bool {
        let current = self.snapshot();
        current.is_none_or(|current| current.connection.has_reader())
    }

    /// Whether there is no connection, none is being made, and none was tried in this time.
    pub(crate) fn is_to_be_made(&self, pause: Duration) -> bool {
        let state = self.state.lock();
        let failed = state.last_failure.as_ref().map(|(at, _)| *at);
        let now = CLOCK.now();
        let mut tried = failed.into_iter().chain(state.since);
        let is_early = tried.any(|at| now.since(at) < pause);
        state.current.is_none() && state.connecting.is_none() && !is_early
    }

    /// The id of the connection that there is now.
    #[cfg(feature = "cluster")]
    pub(crate) fn current_id(&self) -> Option<ConnectionId> {
        self.snapshot().map(|current| current.connection.id)
    }
}

/// How long the next try waits after one that failed, while a server is out of reach and no request makes a connection.
const RETURN_PAUSE: Duration = Duration::from_secs(1);

/// The task that makes the next connection, so that a server that is back is noticed without a request.
struct Returning(Weak<ReconnectingConnection>);

impl Returning {
    /// Tries once a second, until there is a connection or the manager has ended.
    async fn work(self) {
        while let Some(reconnecting) = self.0.upgrade() {
            // It may have ended again before this task was polled. Then its end has started no other task.
            if reconnecting.current().await.is_ok() && reconnecting.is_up() {
                return;
            }
            drop(reconnecting);
            tokio::time::sleep(jittered(RETURN_PAUSE)).await;
        }
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        if let Some(reconnecting) = self.0.upgrade() {
            reconnecting.is_returning.store(false, Ordering::Release);
        }
    }
}

/// The task that connects. Its drop notes an end even if a resolver or a verifier of the user's client panics: then the next caller
/// connects.
struct Unfinished(Arc<ReconnectingConnection>, Arc<Connecting>);

impl Unfinished {
    async fn connect(self) {
        let reconnecting = &self.0;
        let within = reconnecting.timing.connect_timeout;
        let opened = timeout(within, opening::open(reconnecting)).await;
        let late = || Err(errors::unconnected(&reconnecting.address, within));
        let installed = opened
            .unwrap_or_else(|_| late())
            .and_then(|current| reconnecting.install(current));
        self.end(installed.map_err(|failure| match failure {
            // The settings worked before and are wrong now: a password was replaced, or a certificate expired.
            Failure::Invalid(reason) if reconnecting.state.lock().since.is_some() => {
                Failure::refused(reason.to_string())
            }
            failure => failure,
        }));
    }

    fn end(&self, result: Opened) {
        let Self(reconnecting, connecting) = self;
        let failure = result.as_ref().err().cloned();
        if let Some(failure) = &failure {
            reconnecting.note_out_of_reach(failure);
        }
        if connecting.result.set(result).is_ok() {
            let mut state = reconnecting.state.lock();
            state.connecting = None;
            state.last_failure = failure.map(|failure| (CLOCK.now(), failure));
            drop(state);
            connecting.done.close();
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let why = "making a connection panicked, or the runtime that makes it has ended";
        self.end(Err(Failure::not_now(why)));
    }
}

impl Drop for ReconnectingConnection {
    /// Closes the connection: a node that left its cluster needs none.
    fn drop(&mut self) {
        self.forget_if(|_| true);
    }
}
