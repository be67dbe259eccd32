//! One server, and the connections to it.
//!
//! The users' tasks send their requests for free locks on request connections, one for each runtime. All other requests use the
//! connection of the manager's thread. So do requests for free locks from a runtime without a connection, and from a thread without
//! a runtime. A user's own client drives its connections itself, so with one there are no request connections.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::{runtime::Id, time::timeout};

use crate::{
    backend::{
        Release,
        in_flight::{ConnectionId, InFlight},
        redis::{
            topology::{
                Replicas, replica_acks::ReplicaAcks, sharded_subscription::ShardedSubscription,
            },
            transport::{
                connection::CurrentConnection, handshake::Purpose, known_primary::Need,
                reconnecting::ReconnectingConnection, requests::Ready, session::Session,
            },
        },
    },
    runtime::{executor::Executor, io_thread, mutex::Mutex},
};

/// The maximum number of request connections. Further runtimes share them.
const MOST: usize = 8;

/// The minimum time between making two of them. In the meantime, requests use the connection of the manager's thread.
const PAUSE: Duration = Duration::from_secs(1);

/// How often the sentinels are asked whether the primary has changed.
const WATCH: Duration = Duration::from_secs(1);

/// One server that keeps locks.
#[derive(Debug)]
pub(crate) struct RedisServer {
    /// The connection of the manager's thread.
    pub(crate) connection: Arc<ReconnectingConnection>,
    /// The connections of users' runtimes. `None` if the client is a user's own.
    requests: Option<Mutex<Vec<RequestConnection>>>,
    /// For users without the right to run scripts. Only transactions are sent on it.
    pub(crate) changes: Arc<ReconnectingConnection>,
    /// Like `changes`, but for renewals, so that hundreds of releases in a row let no lease run out.
    pub(crate) renewals: Arc<ReconnectingConnection>,
    /// The subscriptions to grants at this node, in a cluster.
    pub(crate) subscription: Option<ShardedSubscription>,
    /// Set if replicas must acknowledge a lock before it counts.
    pub(crate) replica_acks: Option<ReplicaAcks>,
}

#[derive(Debug)]
struct RequestConnection {
    runtime: CallerRuntime,
    connection: Arc<ReconnectingConnection>,
    /// The connection that was used last. It may have ended since, or have been given up.
    current: Option<Arc<CurrentConnection>>,
    /// The number of connections that the manager's thread had lost when this one was used last.
    losses: u64,
    /// `true` if its runtime cannot be the home of a session.
    has_no_reactor: bool,
}

impl RequestConnection {
    fn session(&self) -> Option<&Session> {
        self.current.as_ref()?.connection.session()
    }

    /// Returns `true` if its session runs on a runtime of its users.
    fn is_on_user_runtime(&self) -> bool {
        self.session().is_some_and(Session::is_on_user_runtime)
    }

    /// Moves the session to the calling task's runtime if it runs on the manager's thread, either because it is new or because
    /// that thread took it over.
    fn move_to_caller(&mut self) {
        let Some(session) = self
            .session()
            .filter(|session| !session.is_on_user_runtime())
        else {
            return;
        };
        if !self.has_no_reactor
            && let Some(home) = io_thread::caller()
        {
            self.has_no_reactor = session.move_to(&home).is_err();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallerRuntime {
    Real(Id),
    /// A simulation has no runtimes.
    #[cfg(feature = "simulation")]
    Simulated,
}

impl RedisServer {
    /// `subscription` is set for a node of a cluster.
    pub(crate) fn new(
        connection: ReconnectingConnection,
        subscription: Option<ShardedSubscription>,
        replicas: Option<Replicas>,
    ) -> Self {
        let connection = Arc::new(connection);
        let another = || connection.another(Purpose::OtherCommands, connection.timing());
        Self {
            changes: Arc::new(another()),
            renewals: Arc::new(another()),
            replica_acks: replicas.map(|replicas| ReplicaAcks::new(&connection, replicas)),
            requests: (connection.address().client().is_none()).then(Mutex::default),
            connection,
            subscription,
        }
    }

    /// Returns all connections to the server, except those on which only grants arrive.
    pub(crate) fn connections(&self) -> Vec<Arc<ReconnectingConnection>> {
        let replica_acks = self.replica_acks.iter().map(|acks| &acks.connection);
        let fixed = replica_acks.chain([&self.connection, &self.changes, &self.renewals]);
        let mut all: Vec<_> = fixed.cloned().collect();
        if let Some(requests) = &self.requests {
            all.extend(requests.lock().iter().map(|one| one.connection.clone()));
        }
        all
    }

    /// Returns the connection on which locks are taken.
    pub(crate) fn holding(&self) -> &Arc<ReconnectingConnection> {
        let acks = self.replica_acks.as_ref();
        acks.map_or(&self.connection, |acks| &acks.connection)
    }

    /// Returns the connection for releasing a lock, which is the one on which it was taken, so that the release never overtakes
    /// the acquire. If no request of the acquire is in flight any more, the connection that does not wait for replicas is used.
    pub(crate) fn releasing(&self, acquire_in_flight: &InFlight) -> Arc<ReconnectingConnection> {
        if acquire_in_flight.is_empty() {
            return self.connection.clone();
        }
        let on = acquire_in_flight.only_connection();
        let on = on.and_then(|id| self.with_id(id));
        on.map_or_else(|| self.holding().clone(), |ready| ready.reconnecting)
    }

    /// Returns the connection for a request that needs only one reply, if it is ready. It is the one on which earlier requests
    /// are in flight, or else that of the calling task's runtime. If the runtime has none yet, it is made in the background.
    pub(crate) fn ready(&self, behind: Option<ConnectionId>, executor: &Executor) -> Option<Ready> {
        if let Some(id) = behind
            && let Some(ready) = self.with_id(id)
        {
            return Some(ready);
        }
        self.own_of_caller(executor)
            .or_else(|| self.connection.ready())
    }

    /// Like [`ready`](Self::ready), for a release. While the acquire may be in flight, its connection is used.
    pub(crate) fn ready_to_release(&self, request: &Release, executor: &Executor) -> Option<Ready> {
        if request.owner.in_flight.is_empty() && self.replica_acks.is_none() {
            return self.ready(request.owner.released_on.only_connection(), executor);
        }
        self.releasing(&request.owner.in_flight).ready()
    }

    /// Returns the runtime's own connection. It is doubted once the manager's thread has lost its connection, which renewals prove
    /// to be dead. Otherwise, only the next request would find out, by getting no reply.
    fn own_of_caller(&self, executor: &Executor) -> Option<Ready> {
        let (requests, runtime) = (self.requests.as_ref()?, caller(executor)?);
        let mut requests = requests.lock();
        let found = self.of_runtime(&mut requests, runtime);
        let losses = self.connection.losses.load(Ordering::Acquire);
        if std::mem::replace(&mut found.losses, losses) != losses {
            let reconnecting = found.connection.clone();
            drop(requests);
            executor.spawn(async move { reconnecting.doubt() });
            return None;
        }
        if !matches!(&found.current, Some(current) if current.connection.traffic.is_usable()) {
            found.current = found.connection.snapshot();
        }
        found.move_to_caller();
        let (reconnecting, current) = (found.connection.clone(), found.current.clone());
        drop(requests);
        if current.is_none() && reconnecting.is_to_be_made(PAUSE) {
            executor.spawn(async move { drop(reconnecting.current().await) });
            return None;
        }
        Some(Ready::new(reconnecting, current?))
    }

    /// Returns the connection of the calling task's runtime, made or not. `None` if requests from there use that of the
    /// manager's thread.
    pub(crate) fn for_caller(&self, executor: &Executor) -> Option<Arc<ReconnectingConnection>> {
        let (requests, runtime) = (self.requests.as_ref()?, caller(executor)?);
        let mut requests = requests.lock();
        let found = self.of_runtime(&mut requests, runtime);
        Some(found.connection.clone())
    }

    fn of_runtime<'a>(
        &self,
        each: &'a mut Vec<RequestConnection>,
        runtime: CallerRuntime,
    ) -> &'a mut RequestConnection {
        let own = each.iter().position(|one| one.runtime == runtime);
        // A connection that no runtime drives serves the next one: its own runtime has ended, or it is still unused.
        let left = || each.iter().position(|one| !one.is_on_user_runtime());
        let at = match own.or_else(left) {
            Some(at) => at,
            None if each.len() < MOST => {
                let main = &self.connection;
                each.push(RequestConnection {
                    runtime,
                    connection: Arc::new(main.another(Purpose::Requests, main.timing())),
                    current: None,
                    losses: main.losses.load(Ordering::Acquire),
                    has_no_reactor: false,
                });
                each.len() - 1
            }
            // Any of them will do, because a session serves tasks of all runtimes.
            None => {
                each.rotate_left(1);
                0
            }
        };
        let found = &mut each[at];
        if own.is_none() {
            found.runtime = runtime;
            found.has_no_reactor = false;
        }
        found
    }

    /// Returns the connection with this id, if it is still in use.
    fn with_id(&self, id: ConnectionId) -> Option<Ready> {
        let has_id = |connection: &Arc<ReconnectingConnection>| {
            connection.ready().filter(|ready| ready.id() == id)
        };
        has_id(&self.connection).or_else(|| {
            let requests = self.requests.as_ref()?.lock();
            requests.iter().find_map(|one| has_id(&one.connection))
        })
    }
}

/// Returns the runtime of the calling task. `None` if it has no connection of its own, because there is no runtime, or it is
/// that of the manager's thread.
fn caller(executor: &Executor) -> Option<CallerRuntime> {
    #[cfg(feature = "simulation")]
    if crate::runtime::simulation::ask(|_| ()).is_some() {
        return Some(CallerRuntime::Simulated);
    }
    if !cfg!(unix) {
        return None;
    }
    let id = io_thread::caller()?.id();
    (!executor.has_runtime(id)).then_some(CallerRuntime::Real(id))
}

/// Makes all connections leave a primary that was replaced. Sentinels cut the connections of a primary that they can reach. A
/// primary that only this process can still reach would continue to give out locks that no other client respects.
pub(crate) async fn watch_sentinels(server: Weak<RedisServer>) {
    let sentinels = server.upgrade();
    let sentinels = sentinels.and_then(|server| server.connection.sentinels().cloned());
    let Some(sentinels) = sentinels else {
        return;
    };
    // Until the manager ends.
    loop {
        // Asks sooner after a silence, in which a fail-over may have begun and ended, and after another choice.
        drop(timeout(WATCH, sentinels.doubted().notified()).await);
        let Some(server) = server.upgrade() else {
            return;
        };
        let connections = server.connections();
        if !connections.iter().any(|connection| connection.is_up()) {
            continue;
        }
        for connection in connections {
            connection.leave_if_replaced();
        }
        // If this leads to another choice, now or by a late reply, the watch is notified, and leaves the primary.
        drop(sentinels.clone().primary(Need::Watch).await);
    }
}
