//! The location of a lock's key, and requests to the server there.

use std::{sync::Arc, time::Duration};

use redis::Value;

use crate::{
    backend::{
        in_flight::{ConnectionId, InFlight},
        redis::{
            topology::{
                companions::Names, server::RedisServer, sharded_subscription::GrantDelivery,
            },
            transport::{
                capabilities::Capabilities,
                command::{
                    Arg::{self, Joined, Text},
                    Commands, command, in_one_message,
                },
                reconnecting::ReconnectingConnection,
                redirect::NodeRole,
            },
        },
    },
    failure::Failure,
};

/// The location of a lock's key, and the names of its companions there.
#[derive(Clone)]
pub(crate) struct KeyLocation {
    pub(crate) server: Arc<RedisServer>,
    pub(crate) names: Arc<Names>,
    /// The slot of the key in a cluster; otherwise zero.
    pub(crate) slot: u16,
    pub(crate) node_role: NodeRole,
}

impl KeyLocation {
    pub(crate) fn at(server: Arc<RedisServer>, names: Arc<Names>, slot: u16) -> Self {
        Self {
            server,
            names,
            slot,
            node_role: NodeRole::ServesSlot,
        }
    }

    /// Returns the lock and its companions, which are the fencing clock, the queue and the beats of its waiters, the holders and
    /// their permits, the result of a run, and the mark of processes that poll: see `scripts/queue.lua`. Their names depend only on
    /// the full key, so managers that form the same full key with different prefixes share them.
    pub(crate) fn keys<'a>(&'a self, full_key: &'a str) -> [Arg<'a>; 8] {
        [
            Text(full_key),
            Text(&self.names.clock),
            Joined(&self.names.queue, full_key),
            Joined(&self.names.beats, full_key),
            Joined(&self.names.holders, full_key),
            Joined(&self.names.permits, full_key),
            Joined(&self.names.results, full_key),
            Joined(&self.names.asked, full_key),
        ]
    }

    /// Returns how grants for locks here are delivered now.
    pub(crate) fn delivery(&self) -> GrantDelivery {
        match (&self.server.subscription, self.node_role) {
            (Some(subscription), NodeRole::ServesSlot) => subscription.delivery(&self.names.grants),
            (None, _) if self.server.connection.is_subscribed() => GrantDelivery::Pushed,
            // While the slot is being moved to this node, subscribing is not possible, and the redirect does not name the
            // source node.
            _ => GrantDelivery::Unsupported,
        }
    }

    /// Subscribes to the grants for locks here.
    pub(crate) async fn listen(&self, within: Duration) -> Result<GrantDelivery, Failure> {
        if let Some(subscription) = &self.server.subscription
            && self.node_role == NodeRole::ServesSlot
        {
            return subscription.listen(&self.names.grants, within).await;
        }
        Ok(self.delivery())
    }

    /// Sends commands in one message to a node that has their keys, or to which the keys are being moved. Returns one reply
    /// each.
    pub(crate) async fn send(
        &self,
        connection: &Arc<ReconnectingConnection>,
        commands: impl IntoIterator<Item = Commands>,
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Vec<Value>), Failure> {
        let commands = in_one_message(self.asking(commands));
        let (id, replies) = connection.send_all(commands, within, in_flight).await?;
        if self.node_role == NodeRole::ServesSlot {
            return Ok((id, replies));
        }
        Ok((id, replies.into_iter().skip(1).step_by(2).collect()))
    }

    /// Returns the commands as they are sent here: a node to which the slot is being moved needs an `ASKING` before each.
    pub(crate) fn asking(&self, commands: impl IntoIterator<Item = Commands>) -> Vec<Commands> {
        let commands = commands.into_iter();
        if self.node_role == NodeRole::ServesSlot {
            return commands.collect();
        }
        let asking = || command(&[&[Text("ASKING")]]);
        commands.flat_map(|command| [asking(), command]).collect()
    }

    /// Returns the capabilities of the key's server. Connects if necessary.
    pub(crate) async fn capabilities(&self, within: Duration) -> Result<Capabilities, Failure> {
        self.server.connection.capabilities(within).await
    }
}
