//! The scripts, and running them: by their hash, or by their text where the server does not know it (any more).

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
            reconnecting::ReconnectingConnection,
            wire::command::{Arg, Outgoing, command, pipeline},
        },
    },
};

pub(crate) mod replies;

/// A script of a file, after the shared functions, with its short path before both: most calls end in the short path, and never
/// define the functions that come after.
macro_rules! script {
    ($file:literal) => {
        LazyLock::new(|| Lua::new(concat!(include_str!("queue.lua"), include_str!($file))))
    };
    (short $short:literal, $file:literal) => {
        LazyLock::new(|| {
            Lua::new(concat!(
                include_str!($short),
                include_str!("queue.lua"),
                include_str!($file)
            ))
        })
    };
    (alone $file:literal) => {
        LazyLock::new(|| Lua::new(include_str!($file)))
    };
}

pub(super) static ACQUIRE: LazyLock<Lua> = script!(short "acquire_short.lua", "acquire.lua");
pub(super) static PREFETCH: LazyLock<Lua> = script!("prefetch.lua");
pub(super) static RELEASE: LazyLock<Lua> = script!(short "release_short.lua", "release.lua");
pub(super) static FORCE_RELEASE: LazyLock<Lua> = script!("force_release.lua");
pub(super) static RENEW: LazyLock<Lua> = script!(alone "renew.lua");
pub(super) static INSPECT: LazyLock<Lua> = script!(alone "inspect.lua");
#[cfg(feature = "redlock")]
pub(super) static PROPOSE: LazyLock<Lua> = script!(alone "propose.lua");

/// One script. Keys and values reach it as arguments only, never as text of it.
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

/// The node of a cluster to which a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeRole {
    /// The node that has the slot.
    SlotOwner,
    #[cfg(feature = "cluster")]
    /// The node that the slot is being moved to, and which has the key already.
    MigrationTarget,
}

/// The form in which a script is named in a call.
#[derive(Clone, Copy)]
enum ScriptName {
    Hash,
    Text,
}

impl Lua {
    fn new(text: &'static str) -> Self {
        Self {
            text,
            hash: sha1_smol::Sha1::from(text).digest().to_string(),
        }
    }

    /// Runs the script, all within a time-out; an error reply of the server is a value.
    pub(super) async fn ask(
        &self,
        connection: &Arc<ReconnectingConnection>,
        node_role: NodeRole,
        call: Call<'_>,
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Value), Failure> {
        match node_role {
            NodeRole::SlotOwner => {}
            #[cfg(feature = "cluster")]
            NodeRole::MigrationTarget => {
                return self
                    .ask_for_a_guest(connection, call, within, in_flight)
                    .await;
            }
        }
        let started = Clock::Boot.now();
        let hash = Outgoing::One(self.command(ScriptName::Hash, call));
        let (id, value) = one(connection.send_all(hash, within, in_flight).await?);
        if !is_unknown(&value) {
            return Ok((id, value));
        }
        // The server was restarted, or its scripts were flushed: after the text was sent, it knows the hash again.
        let left = within.saturating_sub(Clock::Boot.now().since(started));
        let text = Outgoing::One(self.command(ScriptName::Text, call));
        Ok(one(connection.send_all(text, left, in_flight).await?))
    }

    #[cfg(feature = "cluster")]
    async fn ask_for_a_guest(
        &self,
        connection: &Arc<ReconnectingConnection>,
        call: Call<'_>,
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Value), Failure> {
        let asking = command(&[&[Arg::Text("ASKING")]]);
        let both = pipeline([asking, self.command(ScriptName::Text, call)]);
        Ok(one(connection.send_all(both, within, in_flight).await?))
    }

    /// A call of the script. If the server does not know it, it is not executed.
    pub(super) fn call(&self, call: Call<'_>) -> Outgoing {
        Outgoing::One(self.command(ScriptName::Hash, call))
    }

    /// Runs the script once for each call, in one message; one reply each.
    pub(super) async fn run_all(
        &self,
        connection: &Arc<ReconnectingConnection>,
        calls: &[Call<'_>],
        within: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let started = Clock::Boot.now();
        let answers = self
            .send_all(connection, calls, ScriptName::Hash, within)
            .await?;
        if !answers.iter().any(is_unknown) {
            return Ok(answers);
        }
        let left = within.saturating_sub(Clock::Boot.now().since(started));
        self.send_all(connection, calls, ScriptName::Text, left)
            .await
    }

    async fn send_all(
        &self,
        connection: &Arc<ReconnectingConnection>,
        calls: &[Call<'_>],
        by: ScriptName,
        within: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let calls = pipeline(calls.iter().map(|call| self.command(by, *call)));
        let (_, answers) = connection.send_all(calls, within, None).await?;
        Ok(answers)
    }

    fn command(&self, by: ScriptName, call: Call<'_>) -> Cmd {
        let (name, script) = match by {
            ScriptName::Hash => ("EVALSHA", self.hash.as_str()),
            ScriptName::Text => ("EVAL", self.text),
        };
        let keys = Arg::Number(call.keys.len() as u64);
        command(&[
            &[Arg::Text(name), Arg::Text(script), keys],
            call.keys,
            call.arguments,
        ])
    }
}

fn is_unknown(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}

/// The last reply.
fn one((id, mut answers): (ConnectionId, Vec<Value>)) -> (ConnectionId, Value) {
    (id, answers.pop().unwrap_or(Value::Nil))
}
