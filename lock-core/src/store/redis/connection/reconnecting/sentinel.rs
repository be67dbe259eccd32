//! Asking sentinels where the primary is.
//!
//! All sentinels are asked at the same time, for each new connection and once a second. `known_primary.rs` chooses among the
//! replies.
//!
//! `ROLE` is asked only of a new connection: a primary that was stopped goes on as one, whatever the sentinels did meanwhile. A primary
//! that is cut off from the sentinels alone would go on giving out locks. So they are also asked after it was silent.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, timeout_at},
};

use crate::runtime::mutex::Mutex;
use crate::store::{
    Failure, StoreFuture,
    redis::{
        address::Address,
        connection::{
            Arg::Text,
            CLOCK, PubSubDispatch, Purpose, ReconnectingConnection, errors,
            known_primary::{Choices, KnownPrimary, Need, PrimaryFinder, SentinelReply},
        },
    },
    timing::Timing,
};

/// Once one sentinel that leads no fail-over has replied, the others have this long.
const GRACE: Duration = Duration::from_millis(100);

/// A primary that is known to sentinels under a name.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) sentinels: Vec<Address>,
    /// The settings for connections to the primary, at whatever host and port it is.
    pub(crate) primary: Address,
}

/// The sentinels that know a primary.
#[derive(Debug)]
pub(crate) struct Sentinels {
    connections: Vec<Arc<ReconnectingConnection>>,
    service: String,
    choices: Mutex<Choices>,
    doubted: Notify,
}

impl Sentinels {
    pub(crate) fn new(service: &Service, timing: Timing, dispatch: &PubSubDispatch) -> Self {
        let connection = |address: &Address| {
            let (purpose, dispatch) = (Purpose::OtherCommands, dispatch.of_no_listener());
            Arc::new(ReconnectingConnection::new(
                address.clone(),
                None,
                purpose,
                timing,
                dispatch,
            ))
        };
        Self {
            connections: service.sentinels.iter().map(connection).collect(),
            service: service.name.clone(),
            choices: Mutex::default(),
            doubted: Notify::new(),
        }
    }

    /// The replies that name a primary: one at least.
    async fn ask_all(&self) -> Result<Vec<SentinelReply>, Failure> {
        let mut asked = JoinSet::new();
        for connection in &self.connections {
            let (connection, service) = (connection.clone(), self.service.clone());
            asked.spawn(async move { ask(&connection, &service).await });
        }
        let (mut replies, mut failures, mut until) = (Vec::new(), Vec::new(), None);
        // Ends with the last reply, or `GRACE` after the first one that may count. The time-outs of a connection bound each reply.
        while let Some(reply) = match until {
            None => asked.join_next().await,
            Some(until) => timeout_at(until, asked.join_next()).await.unwrap_or(None),
        } {
            match reply {
                Ok(Ok(reply)) => {
                    if !reply.is_failing_over {
                        until.get_or_insert_with(|| Instant::now() + GRACE);
                    }
                    replies.push(reply);
                }
                Ok(Err(failure)) => failures.push(failure),
                Err(_) => {}
            }
        }
        if !replies.is_empty() {
            return Ok(replies);
        }
        // A transient failure takes precedence over a permanent one: that sentinel may know the primary later.
        let none = || Failure::no_reply("no sentinel answered");
        Err(failures
            .into_iter()
            .max_by_key(Failure::is_transient)
            .unwrap_or_else(none))
    }
}

impl PrimaryFinder for Sentinels {
    fn primary(self: Arc<Self>, need: Need) -> StoreFuture<KnownPrimary> {
        Box::pin(async move {
            let replies = self.ask_all().await?;
            // The choice is made at one point of time: of two callers, the later one knows what the earlier one chose.
            let mut choices = self.choices.lock();
            let chosen = choices.choose(&replies, self.connections.len(), need, CLOCK.now());
            chosen.map_err(Failure::not_now)
        })
    }

    fn is_still(&self, primary: &KnownPrimary) -> bool {
        self.choices.lock().is_still(primary)
    }

    fn doubted(&self) -> &Notify {
        &self.doubted
    }
}

async fn ask(
    connection: &Arc<ReconnectingConnection>,
    service: &str,
) -> Result<SentinelReply, Failure> {
    let words = [Text("SENTINEL"), Text("MASTER"), Text(service)];
    let (within, address) = (connection.timing().connect_timeout, connection.address());
    let error = match connection.send(&[&words], within, None).await? {
        (_, Value::ServerError(error)) => error,
        (_, fields) => {
            let named = SentinelReply::read(&fields);
            return named.ok_or_else(|| errors::nonsense("the question for the primary"));
        }
    };
    let sentinel = address.shown();
    Err(if errors::details_of(&error).contains("No such master") {
        Failure::invalid(format!(
            "the sentinel {sentinel} knows no primary by the name `{service}`: it follows the hosts in the url"
        ))
    } else if error.code() == "NOPERM" {
        let user = address.user().unwrap_or("default");
        Failure::invalid(format!(
            "this user of the sentinel {sentinel} may not ask where the primary is: an administrator of the sentinels grants it \
             by `ACL SETUSER {user} +ping +sentinel|master`"
        ))
    } else if errors::is_unknown_command(&error) {
        Failure::invalid(format!(
            "{sentinel} is no sentinel: it does not know the command SENTINEL. Name the sentinels (port 26379 by default), or write a \
             `redis://` url for a server without sentinels"
        ))
    } else {
        errors::refused(&error, address)
    })
}
