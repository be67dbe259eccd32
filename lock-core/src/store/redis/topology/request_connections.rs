//! The connections on which the tasks of users send their requests for free locks: one for each runtime.
//!
//! All other requests use the connection of the manager's thread. So do these while there is no connection for the caller's runtime,
//! and on a thread without a runtime. A client of the user's runs its driver itself, so there is no other connection, either.

use std::{sync::Arc, time::Duration};

use tokio::runtime::Id;

use crate::{
    runtime::{executor::Executor, io_thread, mutex::Mutex},
    store::{
        in_flight::ConnectionId,
        redis::connection::{
            ready::Ready,
            handshake::{CurrentConnection, Purpose},
            reconnecting::ReconnectingConnection,
        },
    },
};

/// How many there are at most. The runtimes beyond that share them.
const MOST: usize = 8;

/// How often one is made at most. Meanwhile the requests use the connection of the manager's thread.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct RequestConnections {
    of_the_manager: Arc<ReconnectingConnection>,
    each: Mutex<Vec<OfRuntime>>,
}

#[derive(Debug)]
struct OfRuntime {
    runtime: CallerRuntime,
    connection: Arc<ReconnectingConnection>,
    /// The one that was in use last. It may have ended since, or have been given up.
    current: Option<Arc<CurrentConnection>>,
    /// How many connections the manager's thread had lost when this one was used last.
    losses: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallerRuntime {
    Real(Id),
    /// A simulation has no runtimes.
    #[cfg(feature = "simulation")]
    Simulated,
}

impl RequestConnections {
    pub(crate) fn new(of_the_manager: Arc<ReconnectingConnection>) -> Self {
        Self {
            of_the_manager,
            each: Mutex::default(),
        }
    }

    /// The connection for a request of the calling task, if there is one now. If its runtime has none yet, it is made in the background.
    ///
    /// A connection is doubted once the manager's thread has lost its own, which renewals show to be dead. Otherwise the next request
    /// would find that out, and have no reply.
    pub(crate) fn of_caller(&self, executor: &Executor) -> Option<Ready> {
        let own = self.own_of_caller(executor);
        own.or_else(|| self.of_the_manager.ready())
    }

    fn own_of_caller(&self, executor: &Executor) -> Option<Ready> {
        let runtime = self.caller(executor)?;
        let mut each = self.each.lock();
        let found = self.of_runtime(&mut each, runtime);
        let (reconnecting, losses) = (found.connection.clone(), self.of_the_manager.losses());
        if std::mem::replace(&mut found.losses, losses) != losses {
            drop(each);
            executor.spawn(async move { reconnecting.doubt() });
            return None;
        }
        let current = found.current.as_ref();
        if current.is_none_or(|current| !current.connection.is_usable()) {
            found.current = reconnecting.snapshot();
        }
        let current = found.current.clone();
        drop(each);
        if current.is_none() && reconnecting.is_to_be_made(PAUSE) {
            executor.spawn(async move { drop(reconnecting.current().await) });
            return None;
        }
        current.map(|current| Ready {
            reconnecting,
            current,
        })
    }

    /// The connection of the calling task's runtime, made or not. `None`: requests from there use the one of the manager's thread.
    pub(crate) fn for_caller(&self, executor: &Executor) -> Option<Arc<ReconnectingConnection>> {
        let runtime = self.caller(executor)?;
        let mut each = self.each.lock();
        Some(self.of_runtime(&mut each, runtime).connection.clone())
    }

    fn of_runtime<'a>(
        &self,
        each: &'a mut Vec<OfRuntime>,
        runtime: CallerRuntime,
    ) -> &'a mut OfRuntime {
        let own = each.iter().position(|one| one.runtime == runtime);
        // One of a runtime that has ended serves the next one.
        let left = || each.iter().position(|one| !one.connection.has_reader());
        let at = match own.or_else(left) {
            Some(at) => at,
            None if each.len() < MOST => {
                let main = &self.of_the_manager;
                each.push(OfRuntime {
                    runtime,
                    connection: Arc::new(main.another(Purpose::Requests, main.timing())),
                    current: None,
                    losses: main.losses(),
                });
                each.len() - 1
            }
            // Any of them: its reader serves all.
            None => {
                each.rotate_left(1);
                0
            }
        };
        let found = &mut each[at];
        found.runtime = runtime;
        found
    }

    /// The connection with this id, if it is still in use.
    pub(crate) fn with_id(&self, id: ConnectionId) -> Option<Ready> {
        let has_id = |connection: &Arc<ReconnectingConnection>| {
            connection.ready().filter(|ready| ready.id() == id)
        };
        has_id(&self.of_the_manager).or_else(|| {
            let each = self.each.lock();
            each.iter().find_map(|one| has_id(&one.connection))
        })
    }

    pub(crate) fn all(&self) -> Vec<Arc<ReconnectingConnection>> {
        let each = self.each.lock();
        each.iter().map(|one| one.connection.clone()).collect()
    }

    /// The runtime of the calling task. `None`: it has no connection of its own, since there is none, it is that of the manager's
    /// thread, or the client is a user's.
    fn caller(&self, executor: &Executor) -> Option<CallerRuntime> {
        if self.of_the_manager.address().client().is_some() {
            return None;
        }
        #[cfg(feature = "simulation")]
        if crate::runtime::simulation::ask(|_| ()).is_some() {
            return Some(CallerRuntime::Simulated);
        }
        let id = io_thread::caller().filter(|_| cfg!(unix))?.id();
        (!executor.has_runtime(id)).then_some(CallerRuntime::Real(id))
    }
}
