//! The scripts, and running them: by their hash, or by their text where the server does not know it (any more).

use std::{sync::Arc, sync::LazyLock, time::Duration};

use redis::{Cmd, Pipeline, Value};

use crate::{
    backend::{
        Failure,
        redis::{connection::Link, failure},
    },
    clock::Clock,
    token::OwnerToken,
    trail::{ConnectionId, Trail},
};

/// A script of its own file, with what the scripts share before it, and its short way before all that: most calls end there,
/// and never make the functions that come after.
macro_rules! script {
    ($file:literal) => {
        LazyLock::new(|| {
            Lua::new(concat!(
                include_str!("scripts/queue.lua"),
                include_str!($file)
            ))
        })
    };
    (short $short:literal, $file:literal) => {
        LazyLock::new(|| {
            Lua::new(concat!(
                include_str!($short),
                include_str!("scripts/queue.lua"),
                include_str!($file)
            ))
        })
    };
    (alone $file:literal) => {
        LazyLock::new(|| Lua::new(include_str!($file)))
    };
}

pub(super) static ACQUIRE: LazyLock<Lua> =
    script!(short "scripts/acquire_short.lua", "scripts/acquire.lua");
pub(super) static AHEAD: LazyLock<Lua> = script!("scripts/ahead.lua");
pub(super) static RELEASE: LazyLock<Lua> =
    script!(short "scripts/release_short.lua", "scripts/release.lua");
pub(super) static FORCE_RELEASE: LazyLock<Lua> = script!("scripts/force_release.lua");
pub(super) static RENEW: LazyLock<Lua> = script!(alone "scripts/renew.lua");
pub(super) static INSPECT: LazyLock<Lua> = script!(alone "scripts/inspect.lua");

/// One script. Keys and values reach it as arguments only, never as text of it.
pub(super) struct Lua {
    text: &'static str,
    hash: String,
}

/// What a script is called with.
pub(super) struct Call {
    pub(super) keys: Vec<Arc<str>>,
    pub(super) arguments: Vec<Argument>,
}

/// A value for a script.
pub(super) enum Argument {
    Token(OwnerToken),
    Number(u64),
    Word(&'static str),
    Name(Arc<str>),
}

/// By which of its two names a script is called.
#[derive(Clone, Copy)]
enum By {
    Hash,
    Text,
}

impl Lua {
    fn new(text: &'static str) -> Self {
        Self {
            text,
            hash: redis::Script::new(text).get_hash().to_owned(),
        }
    }

    /// Runs the script, all within a time-out; an error that the server answers is a failure.
    pub(super) async fn run(
        &self,
        link: &Arc<Link>,
        call: Call,
        within: Duration,
        trail: Option<&Trail>,
    ) -> Result<(ConnectionId, Value), Failure> {
        let started = Clock::Boot.now();
        let (id, value) = link
            .send(&self.command(&call, By::Hash), within, trail)
            .await?;
        let Value::ServerError(error) = value else {
            return Ok((id, value));
        };
        if error.code() != "NOSCRIPT" {
            return Err(failure::answered(&error));
        }
        let left = within.saturating_sub(Clock::Boot.now().since(started));
        match link
            .send(&self.command(&call, By::Text), left, trail)
            .await?
        {
            (_, Value::ServerError(error)) => Err(failure::answered(&error)),
            answer => Ok(answer),
        }
    }

    /// Runs the script once for each call, in one message; one answer each.
    pub(super) async fn run_all(
        &self,
        link: &Arc<Link>,
        calls: &[Call],
        within: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let started = Clock::Boot.now();
        let answers = self.send_all(link, calls, By::Hash, within).await?;
        let is_unknown = |value: &Value| matches!(value, Value::ServerError(error) if error.code() == "NOSCRIPT");
        if !answers.iter().any(is_unknown) {
            return Ok(answers);
        }
        // The server was restarted, or its scripts were flushed: the text teaches it the hash again.
        let left = within.saturating_sub(Clock::Boot.now().since(started));
        self.send_all(link, calls, By::Text, left).await
    }

    async fn send_all(
        &self,
        link: &Arc<Link>,
        calls: &[Call],
        by: By,
        within: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let mut pipeline = Pipeline::with_capacity(calls.len());
        for call in calls {
            pipeline.add_command(self.command(call, by));
        }
        link.send_all(&pipeline, calls.len(), within).await
    }

    fn command(&self, call: &Call, by: By) -> Cmd {
        let mut command = match by {
            By::Hash => redis::cmd("EVALSHA"),
            By::Text => redis::cmd("EVAL"),
        };
        command.arg(match by {
            By::Hash => self.hash.as_str(),
            By::Text => self.text,
        });
        command.arg(call.keys.len());
        for key in &call.keys {
            command.arg(&**key);
        }
        for argument in &call.arguments {
            match argument {
                Argument::Token(token) => command.arg(token.expose()),
                Argument::Number(number) => command.arg(number),
                Argument::Word(word) => command.arg(word),
                Argument::Name(name) => command.arg(&**name),
            };
        }
        command
    }
}
