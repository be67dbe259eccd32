//! The location of a lock's key, and requests to the server there.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use redis::{Cmd, Value};

use crate::{
    backend::{
        Acquire, Release, Renew,
        in_flight::{ConnectionId, InFlight},
        owner::Entry,
        redis::{
            protocol::scripts::{Call, Lua, is_unknown},
            topology::{
                companions::Names, server::RedisServer, sharded_subscription::GrantDelivery,
            },
            transport::{
                CLOCK,
                capabilities::Capabilities,
                command::{
                    Arg::{self, Bytes, Joined, Number, Text, Token},
                    command, in_one_message, millis,
                },
                errors,
                reconnecting::ReconnectingConnection,
                redirect::NodeRole,
            },
        },
    },
    engine::reply::QueueMode,
    failure::Failure,
    mode::Mode,
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

    /// The arguments of an acquire, and how many of them count. The last one is the time for which a mark tells holders that this
    /// process polls.
    pub(crate) fn acquire_arguments<'a>(
        &'a self,
        request: &'a Acquire,
        queue_mode: QueueMode,
        mark: Duration,
    ) -> ([Arg<'a>; 7], usize) {
        let polls = request.queue_mode != QueueMode::DoNotQueue
            && queue_mode == QueueMode::DoNotQueue
            && self.delivery() == GrantDelivery::Unsupported;
        let arguments = [
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
            Number(millis(mark)),
        ];
        (arguments, if polls { 7 } else { 6 })
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

    /// Runs a script; an error reply of the server is a failure.
    pub(crate) async fn run(&self, script: &Lua, call: Call<'_>) -> Result<Value, Failure> {
        let connection = &self.server.connection;
        let within = connection.reply_within();
        let (_, reply) = (self.run_on(connection, script, call, within, None)).await?;
        errors::of_value(reply)
    }

    /// The same on one of the server's connections, all within a time-out. An error reply of the server is a value.
    pub(crate) async fn run_on(
        &self,
        connection: &Arc<ReconnectingConnection>,
        script: &Lua,
        call: Call<'_>,
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Value), Failure> {
        let calls = [call];
        let ran = self.run_each(connection, script, &calls, within, in_flight);
        let (id, mut replies) = ran.await?;
        Ok((id, replies.pop().unwrap_or(Value::Nil)))
    }

    /// The same once for each call, in one message; one reply each.
    pub(crate) async fn run_each(
        &self,
        connection: &Arc<ReconnectingConnection>,
        script: &Lua,
        calls: &[Call<'_>],
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Vec<Value>), Failure> {
        let (started, mut left) = (CLOCK.now(), within);
        // How many of the calls send the text. A node that is about to get a slot mostly does not know the scripts yet.
        let mut by_text = usize::from(self.node_role != NodeRole::SlotOwner);
        // Three rounds at most.
        loop {
            let commands = calls.iter().enumerate().map(|(number, call)| {
                if number < by_text {
                    script.call_by_text(*call)
                } else {
                    script.call(*call)
                }
            });
            let sent = self.send(connection, commands, left, in_flight).await?;
            if by_text >= calls.len() || !sent.1.iter().any(is_unknown) {
                return Ok(sent);
            }
            // The server was restarted, or its scripts were flushed. After one text, it knows the hash again, unless it refused that
            // call: for example, its key has moved to another node.
            by_text = if by_text == 0 { 1 } else { calls.len() };
            left = within.saturating_sub(CLOCK.now().since(started));
        }
    }

    /// Sends commands in one message to a node that has their keys, or to which the keys are being moved; one reply each.
    pub(crate) async fn send(
        &self,
        connection: &Arc<ReconnectingConnection>,
        commands: impl IntoIterator<Item = Cmd>,
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Vec<Value>), Failure> {
        let commands = commands.into_iter();
        if self.node_role == NodeRole::SlotOwner {
            let commands = in_one_message(commands);
            return connection.send_all(commands, within, in_flight).await;
        }
        // Each ASKING applies to the command after it.
        let asking = || command(&[&[Text("ASKING")]]);
        let commands = in_one_message(commands.flat_map(|command| [asking(), command]));
        let (id, replies) = connection.send_all(commands, within, in_flight).await?;
        Ok((id, replies.into_iter().skip(1).step_by(2).collect()))
    }

    /// The commands by which locks are kept here; connects if need be.
    pub(crate) async fn capabilities(&self, within: Duration) -> Result<Capabilities, Failure> {
        self.server.connection.capabilities(within).await
    }
}
