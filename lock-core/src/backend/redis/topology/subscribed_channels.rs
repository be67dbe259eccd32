//! The channels that are subscribed to one by one, on a connection to a cluster node.

use std::{collections::HashMap, time::Duration};

use crate::{
    backend::{in_flight::ConnectionId, redis::transport::CLOCK},
    moment::Moment,
    runtime::mutex::Mutex,
};

/// With more channels than this on one connection, unused ones are dropped.
const MANY: usize = 512;

/// A channel that has not been used for this long is unused, because a waiter uses its channel more often.
const UNUSED: Duration = Duration::from_secs(10);

/// The channels of a cluster node with a confirmed subscription.
#[derive(Debug, Default)]
pub(crate) struct SubscribedChannels(Mutex<Channels>);

#[derive(Debug, Default)]
struct Channels {
    connection: Option<ConnectionId>,
    /// Each channel, with the time of its last use.
    used: HashMap<String, Moment>,
    /// When the node last ended a subscription by itself.
    ended: Option<Moment>,
}

/// The result of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subscription {
    Confirmed,
    /// The node may have ended it again.
    Ended,
    /// The channel is subscribed to, but most of the channels on its connection are unused.
    Wasteful,
}

impl SubscribedChannels {
    /// Returns `true` if this channel is subscribed to on this connection, and then counts it as used.
    pub(crate) fn is_subscribed(&self, channel: &str, connection: Option<ConnectionId>) -> bool {
        let mut channels = self.0.lock();
        let is_current = connection.is_some() && channels.connection == connection;
        match channels.used.get_mut(channel) {
            Some(used) if is_current => {
                *used = CLOCK.now();
                true
            }
            _ => false,
        }
    }

    /// Records a subscription that was requested at `sent`.
    pub(crate) fn note(
        &self,
        channel: &str,
        connection: ConnectionId,
        sent: Moment,
    ) -> Subscription {
        let now = CLOCK.now();
        let mut channels = self.0.lock();
        if channels.connection != Some(connection) {
            channels.used.clear();
            channels.connection = Some(connection);
        }
        // The subscription that ended may be this one.
        if channels.ended.is_some_and(|ended| ended >= sent) {
            return Subscription::Ended;
        }
        channels.used.insert(channel.to_owned(), now);
        let is_used = |used: &&Moment| now.since(**used) < UNUSED;
        let used = channels.used.values().filter(is_used).count();
        if channels.used.len() > MANY && used < MANY / 2 {
            Subscription::Wasteful
        } else {
            Subscription::Confirmed
        }
    }

    /// Records that the node ended a subscription.
    pub(crate) fn end(&self, channel: &[u8]) {
        let mut channels = self.0.lock();
        channels.ended = Some(CLOCK.now());
        channels.used.retain(|known, _| known.as_bytes() != channel);
    }
}
