//! The location of a lock's key, and requests to the server there.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use redis::Value;

use crate::mode::Mode;
use crate::store::{
    Acquire, Entry, Failure, QueueMode, Release, Renew,
    in_flight::{ConnectionId, InFlight},
    redis::{
        connection::{
            capabilities::Capabilities,
            reconnecting::ReconnectingConnection,
            wire::{
                command::{
                    Arg::{self, Bytes, Joined, Number, Text, Token},
                    millis,
                },
                redirect::NodeRole,
            },
        },
        scripts::{Call, Lua},
        topology::{companions::Names, grant_delivery::GrantDelivery, server::RedisServer},
    },
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
            node_role: NodeRole::SlotOwner,
        }
    }

    /// The lock and its companions. They are the fencing clock, the queue and the beats of its waiters, the holders and their permits,
    /// and the result of a run.
    /// Their names depend only on the full key. So managers that form the same full key with different prefixes share them.
    pub(crate) fn keys<'a>(&'a self, full_key: &'a str) -> [Arg<'a>; 7] {
        [
            Text(full_key),
            Text(&self.names.clock),
            Joined(&self.names.queue, full_key),
            Joined(&self.names.beats, full_key),
            Joined(&self.names.holders, full_key),
            Joined(&self.names.permits, full_key),
            Joined(&self.names.results, full_key),
        ]
    }

    /// How many of the [`keys`](Self::keys) a request in this mode declares: see `scripts/queue.lua`.
    pub(crate) fn declared(mode: Mode) -> usize {
        match mode {
            Mode::Exclusive => 4,
            Mode::Shared | Mode::Permits(_) => 6,
            Mode::Once => 7,
        }
    }

    pub(crate) fn acquire_arguments<'a>(
        &'a self,
        request: &'a Acquire,
        queue_mode: QueueMode,
    ) -> [Arg<'a>; 6] {
        [
            Token(&request.owner.token),
            Number(millis(request.ttl)),
            Number(request.known_fencing),
            Number(request.tokens.into()),
            match queue_mode {
                QueueMode::DoNotQueue => Text("try"),
                QueueMode::JoinQueue => Text("wait"),
                QueueMode::CheckPosition(position) => Number(position.map_or(0, NonZeroU64::get)),
            },
            self.entry(request.entry()),
        ]
    }

    /// The arguments of a release, and how many of them count. That of a lock held alone needs no more than two.
    pub(crate) fn release_arguments<'a>(&'a self, request: &'a Release) -> ([Arg<'a>; 6], usize) {
        let has_entry = request.may_be_queued || !request.owner.mode.is_alone();
        let count = match (&request.result, has_entry, request.keep) {
            (Some(_), ..) => 6,
            (None, true, _) => 4,
            (None, false, Some(_)) => 3,
            (None, false, None) => 2,
        };
        let result = request.result.as_ref();
        let arguments = [
            Token(&request.owner.token),
            Number(request.known_fencing),
            Number(request.keep.map_or(0, millis)),
            self.entry(request.owner.entry()),
            Bytes(result.map_or(&[], |result| &result.bytes)),
            Number(result.map_or(0, |result| millis(result.keep))),
        ];
        (arguments, count)
    }

    /// The keys and the arguments of a renewal. It declares those keys only that exist as long as its lease does. So it is executed while
    /// its slot moves, unless it takes tokens.
    pub(crate) fn renewal<'a>(&'a self, request: &'a Renew) -> (Vec<Arg<'a>>, Vec<Arg<'a>>) {
        let owner = &request.owner;
        let [lock, clock, queue, beats, holders, permits, _] = self.keys(&owner.full_key);
        let keys = match owner.mode {
            Mode::Exclusive if request.tokens > 0 => vec![lock, clock, queue, beats],
            Mode::Exclusive | Mode::Once => vec![lock],
            Mode::Shared => vec![lock, holders],
            Mode::Permits(_) => vec![lock, holders, permits],
        };
        let mut arguments = vec![Token(&owner.token), Number(millis(request.ttl))];
        let is_beside = !owner.mode.is_alone();
        if is_beside || request.tokens > 0 {
            arguments.extend([Number(request.known_fencing), Number(request.tokens.into())]);
        }
        if is_beside {
            arguments.push(self.entry(owner.entry()));
        }
        (keys, arguments)
    }

    /// An entry in the queue, without the owner token.
    fn entry(&self, entry: Entry) -> Arg<'_> {
        Arg::Entry(&self.names.channel, entry)
    }

    /// Whether grants for locks here arrive now.
    pub(crate) fn delivery(&self) -> GrantDelivery {
        match (&self.server.subscription, self.node_role) {
            (Some(subscription), NodeRole::SlotOwner) => subscription.delivery(&self.names.grants),
            (None, _) if self.server.connection.has_grants() => GrantDelivery::Pushed,
            // While the slot is being moved to this node, subscribing is not possible, and the redirect does not name the source node.
            _ => GrantDelivery::Unsupported,
        }
    }

    /// Subscribes to the grants for locks here.
    pub(crate) async fn listen(&self, within: Duration) -> Result<GrantDelivery, Failure> {
        if let Some(subscription) = &self.server.subscription
            && self.node_role == NodeRole::SlotOwner
        {
            return subscription.listen(&self.names.grants, within).await;
        }
        Ok(self.delivery())
    }

    /// Runs a script on one of the server's connections; an error reply of the server is a failure.
    pub(crate) async fn run(
        &self,
        connection: &Arc<ReconnectingConnection>,
        script: &Lua,
        call: Call<'_>,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Value), Failure> {
        let within = connection.reply_within();
        script
            .run(connection, self.node_role, call, within, in_flight)
            .await
    }

    /// The commands by which locks are kept here; connects if need be.
    pub(crate) async fn capabilities(&self, within: Duration) -> Result<Capabilities, Failure> {
        self.server.connection.capabilities(within).await
    }
}
