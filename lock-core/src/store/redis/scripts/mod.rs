//! The scripts, and running them: by their hash, or by their text if the server does not know the hash (any more).
//!
//! The data of a lock are described in `queue.lua`. Rejected for them:
//!
//! - a list as the queue: a check had to read all of it, and 600 waiting processes took a core;
//! - two sets for shared and other requests: an exclusive hand-off would take more commands than with two bands of scores;
//! - a sorted set at the key of a shared lock: several other clients raise an error there, and find a string busy;
//! - the cut of a shared phase in the marker: it was lost if the first part of a batch ended before the rest was granted;
//! - a hash for the cut: the set of the beats is there already;
//! - a counter of permits: a crash would leave it wrong;
//! - for permits, to enter by a free number below `n` alone: a fifth holder could enter with `n = 4`.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use redis::{Cmd, ServerErrorKind, Value};

use crate::{
    runtime::clock::Clock,
    store::{
        Failure,
        in_flight::{ConnectionId, InFlight},
        redis::connection::{
            errors,
            reconnecting::ReconnectingConnection,
            wire::{
                command::{Arg, command, in_one_message},
                redirect::NodeRole,
            },
        },
    },
};

pub(crate) mod replies;

/// Joins files into one script.
macro_rules! script {
    ($($file:literal),+) => {
        LazyLock::new(|| Lua::new(concat!($(include_str!($file)),+)))
    };
}

// A short path comes first: most calls end there, and never define the functions that come after.
pub(super) static ACQUIRE: LazyLock<Lua> = script!(
    "acquire_short.lua",
    "queue.lua",
    "advance.lua",
    "acquire.lua"
);
pub(super) static RELEASE: LazyLock<Lua> = script!(
    "release_short.lua",
    "queue.lua",
    "advance.lua",
    "release.lua"
);
/// The usual release has a program of its own: fewer keys and arguments cost the server a tenth of a lock.
pub(super) static RELEASE_UNCONTENDED: LazyLock<Lua> = script!("release_uncontended.lua");
pub(super) static FORCE_RELEASE: LazyLock<Lua> =
    script!("queue.lua", "advance.lua", "force_release.lua");
pub(super) static RENEW: LazyLock<Lua> =
    script!("renew_short.lua", "queue.lua", "advance.lua", "renew.lua");
pub(super) static INSPECT: LazyLock<Lua> = script!("queue.lua", "inspect.lua");
/// Those of a lock that is only tried.
pub(super) static TRIAL: LazyLock<Lua> = script!("trial.lua");
pub(super) static PROPOSE: LazyLock<Lua> = script!("counter.lua", "propose.lua");
pub(super) static MARK: LazyLock<Lua> = script!("counter.lua", "mark.lua");

/// One script. Keys and values reach it as arguments only, never as part of its text.
pub(super) struct Lua {
    text: &'static str,
    hash: String,
}

/// The keys and arguments of a script call.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) keys: &'a [Arg<'a>],
    pub(super) arguments: &'a [Arg<'a>],
}

impl Lua {
    fn new(text: &'static str) -> Self {
        Self {
            text,
            hash: sha1_smol::Sha1::from(text).digest().to_string(),
        }
    }

    /// A call of the script. If the server does not know it, it is not executed.
    pub(super) fn call(&self, call: Call<'_>) -> Cmd {
        let count = Arg::Number(call.keys.len() as u64);
        let front = [Arg::Text("EVALSHA"), Arg::Text(&self.hash), count];
        command(&[&front, call.keys, call.arguments])
    }

    /// The same with the text, which the server knows by its hash from then on.
    pub(super) fn call_by_text(&self, call: Call<'_>) -> Cmd {
        let count = Arg::Number(call.keys.len() as u64);
        let front = [Arg::Text("EVAL"), Arg::Text(self.text), count];
        command(&[&front, call.keys, call.arguments])
    }

    /// Runs the script, all within a time-out; an error reply of the server is a failure.
    pub(super) async fn run(
        &self,
        connection: &Arc<ReconnectingConnection>,
        node_role: NodeRole,
        call: Call<'_>,
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Value), Failure> {
        let (id, mut replies) = self
            .ask(connection, node_role, &[call], within, in_flight)
            .await?;
        let reply = replies.pop().unwrap_or(Value::Nil);
        Ok((id, errors::of_value(reply)?))
    }

    /// Runs the script once for each call, in one message; one reply each. An error reply of the server is a value.
    pub(super) async fn ask(
        &self,
        connection: &Arc<ReconnectingConnection>,
        node_role: NodeRole,
        calls: &[Call<'_>],
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Vec<Value>), Failure> {
        let (started, mut left) = (Clock::Boot.now(), within);
        // How many of the calls send the text. A node that is about to get a slot mostly does not know the scripts yet.
        let mut by_text = usize::from(node_role != NodeRole::SlotOwner);
        // Three rounds at most.
        loop {
            let commands = calls.iter().enumerate().map(|(number, call)| {
                if number < by_text {
                    self.call_by_text(*call)
                } else {
                    self.call(*call)
                }
            });
            let sent = send_to(connection, node_role, commands, left, in_flight).await?;
            if by_text >= calls.len() || !sent.1.iter().any(is_unknown) {
                return Ok(sent);
            }
            // The server was restarted, or its scripts were flushed. After one text, it knows the hash again, unless it refused that
            // call: for example, its key has moved to another node.
            by_text = if by_text == 0 { 1 } else { calls.len() };
            left = within.saturating_sub(Clock::Boot.now().since(started));
        }
    }
}

/// Whether this is the reply to a call of a script that the server does not know.
pub(super) fn is_unknown(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}

/// Sends commands in one message to a node that has their keys, or to which the keys are being moved; one reply each.
pub(super) async fn send_to(
    connection: &Arc<ReconnectingConnection>,
    node_role: NodeRole,
    commands: impl IntoIterator<Item = Cmd>,
    within: Duration,
    in_flight: Option<&InFlight>,
) -> Result<(ConnectionId, Vec<Value>), Failure> {
    let commands = commands.into_iter();
    match node_role {
        NodeRole::SlotOwner => {
            let commands = in_one_message(commands);
            connection.send_all(commands, within, in_flight).await
        }
        NodeRole::MigrationTarget => {
            // Each ASKING applies to the command after it.
            let asking = || command(&[&[Arg::Text("ASKING")]]);
            let commands = in_one_message(commands.flat_map(|command| [asking(), command]));
            let (id, replies) = connection.send_all(commands, within, in_flight).await?;
            Ok((id, replies.into_iter().skip(1).step_by(2).collect()))
        }
    }
}
