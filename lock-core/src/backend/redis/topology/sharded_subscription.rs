//! Receiving grants in a cluster: each slot has a channel, at the node that has the slot.
//!
//! The channels of a node have a separate connection, on which nothing else depends. A node ends a subscription by itself
//! when its slot moves away, with a message that looks like the reply to a command that ends a subscription. Therefore this
//! process never sends such a command: when most channels are unused, the connection is replaced instead.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{PushKind, Value};

use crate::{
    backend::redis::{
        topology::{
            ServerSettings,
            subscribed_channels::{SubscribedChannels, Subscription},
        },
        transport::{
            CLOCK, address::Address, command::Arg::Text, errors, handshake::Purpose,
            reconnecting::ReconnectingConnection, reply,
        },
    },
    failure::Failure,
};

/// How grants for a key reach this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantDelivery {
    Pushed,
    /// Not now, because the reply has not arrived yet, or the connection broke.
    NotSubscribedYet,
    Unsupported,
}

/// The subscriptions at one node.
#[derive(Debug)]
pub(crate) struct ShardedSubscription {
    connection: Arc<ReconnectingConnection>,
    channels: Arc<SubscribedChannels>,
    /// `true` if this node, or this user, cannot subscribe.
    is_given_up: AtomicBool,
}

impl ShardedSubscription {
    pub(crate) fn new(address: Address, server_settings: &ServerSettings) -> Self {
        let channels = Arc::<SubscribedChannels>::default();
        let events = server_settings.events.of_channels(channels.clone());
        let connection = ReconnectingConnection::new(
            address,
            None,
            Purpose::Pushes,
            server_settings.timing,
            events,
        );
        Self {
            connection: Arc::new(connection),
            channels,
            is_given_up: AtomicBool::new(false),
        }
    }

    /// Returns how grants on this channel are delivered now.
    pub(crate) fn delivery(&self, channel: &str) -> GrantDelivery {
        if self.is_given_up.load(Ordering::Relaxed) {
            return GrantDelivery::Unsupported;
        }
        let current = self.connection.snapshot();
        let current = current.map(|current| current.connection.id);
        if self.channels.is_subscribed(channel, current) {
            GrantDelivery::Pushed
        } else {
            GrantDelivery::NotSubscribedYet
        }
    }

    /// Subscribes to grants on this channel. If this returns `Pushed`, the subscription is confirmed before any entry can be
    /// granted the lock.
    ///
    /// A lock does not depend on the subscription, so only a redirect is a failure here.
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
        let reply = self.connection.send(&[&words], within, None).await;
        match reply.and_then(|(connection, value)| Ok((connection, errors::of_value(value)?))) {
            Ok((connection, reply)) => {
                let note = || self.channels.note(channel, connection, sent);
                match confirms(&reply, channel).then(note) {
                    Some(Subscription::Confirmed) => return Ok(GrantDelivery::Pushed),
                    Some(Subscription::Ended) => {}
                    // All waiters ask again, and subscribe on a new connection. If the reply was not the confirmation, the node
                    // has ended a subscription, and the `redis` crate takes its message for a reply. Every later
                    // request on this connection would get the reply to an earlier one.
                    Some(Subscription::Wasteful) | None => self.connection.forget(connection),
                }
                Ok(GrantDelivery::NotSubscribedYet)
            }
            Err(Failure::Refused(why)) => {
                if !self.is_given_up.swap(true, Ordering::Relaxed) {
                    let server = self.connection.address().shown();
                    self.connection
                        .events()
                        .not_subscribed(server, &why.to_string());
                }
                Ok(GrantDelivery::Unsupported)
            }
            // Another node has the slot, and therefore the lock.
            Err(failure) if errors::redirect(&failure).is_some() => Err(failure),
            // Locks do not depend on the subscription, because waiters poll until it is confirmed.
            Err(failure) => {
                tracing::debug!(
                    server = self.connection.address().shown(),
                    ?failure,
                    "not subscribed to grants yet"
                );
                Ok(GrantDelivery::NotSubscribedYet)
            }
        }
    }
}

/// Returns `true` if a reply is the confirmation of this subscription.
fn confirms(reply: &Value, channel: &str) -> bool {
    matches!(reply, Value::Push { kind: PushKind::SSubscribe, data }
        if data.first().and_then(reply::bytes) == Some(channel.as_bytes()))
}
