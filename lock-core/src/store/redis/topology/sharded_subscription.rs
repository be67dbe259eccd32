//! Hearing of grants in a cluster: each slot has a channel, at the node that has the slot.
//!
//! On a connection of their own, which nothing else depends on: a node ends a subscription by itself when its slot moves away,
//! and that cannot be told from the answer to a command that ends one. So none is ever ended by us; when most of
//! them are of no use any more, the connection is replaced.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    runtime::clock::Moment,
    store::{
        Failure,
        in_flight::ConnectionId,
        redis::{
            connection::{
                CLOCK,
                reconnecting::{Purpose, ReconnectingConnection},
                resp::{Arg::Text, Value},
            },
            errors,
            server::ServerSettings,
            topology::address::Address,
        },
    },
};

/// So many channels are heard on one connection before those are dropped that nobody needs.
const MANY: usize = 512;

/// Whoever waits shows it more often than this.
const UNUSED: Duration = Duration::from_secs(10);

/// What is heard from one node.
#[derive(Debug)]
pub(crate) struct ShardedSubscription {
    connection: Arc<ReconnectingConnection>,
    channels: Arc<SubscribedChannels>,
    /// Whether this node, or this user, cannot subscribe.
    deaf: AtomicBool,
}

/// The channels whose subscription is confirmed.
#[derive(Debug, Default)]
pub(crate) struct SubscribedChannels(Mutex<Channels>);

#[derive(Debug, Default)]
struct Channels {
    connection: Option<ConnectionId>,
    /// With when each was last of use.
    used: HashMap<String, Moment>,
    /// When the node last ended a subscription by itself.
    ended: Option<Moment>,
}

/// Whether grants will arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantDelivery {
    Pushed,
    /// Not now: the answer is not there yet, or the connection broke.
    NotSubscribedYet,
    Unsupported,
}

impl ShardedSubscription {
    pub(crate) fn new(address: Address, server_settings: &ServerSettings) -> Self {
        let channels = Arc::<SubscribedChannels>::default();
        let dispatch = server_settings.dispatch("".into()).with(channels.clone());
        let connection = ReconnectingConnection::new(
            address,
            None,
            Purpose::Grants,
            server_settings.timing,
            dispatch,
        );
        Self {
            connection: Arc::new(connection),
            channels,
            deaf: AtomicBool::new(false),
        }
    }

    /// Whether grants on this channel arrive now.
    pub(crate) fn delivery(&self, channel: &str) -> GrantDelivery {
        if self.deaf.load(Ordering::Relaxed) {
            return GrantDelivery::Unsupported;
        }
        let current = self.connection.current_id();
        let mut channels = self.channels.lock();
        let is_current = current.is_some() && channels.connection == current;
        match channels.used.get_mut(channel) {
            Some(used) if is_current => {
                *used = CLOCK.now();
                GrantDelivery::Pushed
            }
            _ => GrantDelivery::NotSubscribedYet,
        }
    }

    /// Has grants on this channel arrive: confirmed when this returns, before anybody can be granted anything.
    ///
    /// Whether they do is no condition for a lock: only a redirection is a failure here.
    pub(crate) async fn listen(
        &self,
        channel: &str,
        within: Duration,
    ) -> Result<GrantDelivery, Failure> {
        match self.delivery(channel) {
            GrantDelivery::NotSubscribedYet => {}
            known => return Ok(known),
        }
        let sent = CLOCK.now();
        let words = [Text("SSUBSCRIBE"), Text(channel)];
        let answer = self.connection.send(&[&words], within, None).await;
        match answer.and_then(|(connection, value)| Ok((connection, errors::of_value(value)?))) {
            Ok((connection, Value::Array(_))) => Ok(self.note(channel, connection, sent)),
            Ok(_) => Ok(self.never_mind("an answer of the wrong form")),
            Err(Failure::Refused(why)) => Ok(self.never_mind(&why.to_string())),
            // The slot is elsewhere, and so is the lock.
            Err(failure) if errors::redirect(&failure).is_some() => Err(failure),
            // Locks do not depend on it: whoever waits asks again and again until then.
            Err(failure) => {
                tracing::debug!(
                    server = self.connection.address().shown(),
                    ?failure,
                    "no grants are heard of yet"
                );
                Ok(GrantDelivery::NotSubscribedYet)
            }
        }
    }

    fn note(&self, channel: &str, connection: ConnectionId, sent: Moment) -> GrantDelivery {
        let now = CLOCK.now();
        let mut channels = self.channels.lock();
        if channels.connection != Some(connection) {
            channels.used.clear();
            channels.connection = Some(connection);
        }
        // It may have been this one that ended.
        if channels.ended.is_some_and(|ended| ended >= sent) {
            return GrantDelivery::NotSubscribedYet;
        }
        channels.used.insert(channel.to_owned(), now);
        let is_used = |used: &&Moment| now.since(**used) < UNUSED;
        let wasteful =
            channels.used.len() > MANY && channels.used.values().filter(is_used).count() < MANY / 2;
        drop(channels);
        if wasteful {
            // Everybody who waits asks again, and is heard on a new one.
            self.connection.forget(connection);
            return GrantDelivery::NotSubscribedYet;
        }
        GrantDelivery::Pushed
    }

    fn never_mind(&self, why: &str) -> GrantDelivery {
        if !self.deaf.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                server = self.connection.address().shown(),
                why,
                "this server, or this user, cannot be told when a lock is theirs: waiters ask again and again"
            );
        }
        GrantDelivery::Unsupported
    }
}

impl SubscribedChannels {
    /// The node ended a subscription.
    pub(crate) fn end(&self, channel: &[u8]) {
        let mut channels = self.lock();
        channels.ended = Some(CLOCK.now());
        channels.used.retain(|known, _| known.as_bytes() != channel);
    }

    fn lock(&self) -> MutexGuard<'_, Channels> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
