//! The scripts, and calls of them: by their hash, or by their text if the server does not know the hash (any more).
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

mod texts;

use std::sync::LazyLock;

use redis::{ServerErrorKind, Value};

use crate::backend::redis::transport::{
    command::{Arg, Commands, command},
    errors,
};

macro_rules! programs {
    ($($name:ident)+) => {
        $(pub(super) static $name: LazyLock<Lua> = LazyLock::new(|| Lua::new(texts::$name));)+
    };
}

programs! { ACQUIRE RELEASE RELEASE_UNCONTENDED FORCE_RELEASE RENEW INSPECT TRIAL FORGET PROPOSE MARK }

/// One script. Keys and values reach it as arguments only, never as part of its text.
pub(crate) struct Lua {
    text: &'static str,
    hash: String,
}

/// The keys and arguments of a script call.
///
/// A call declares every key that its script may use: some servers refuse all others. But a node of a cluster that is giving a slot away,
/// or receiving it, refuses a call that declares a missing key beside others (`TRYAGAIN`). Such a call was not executed. It is sent once
/// more with the few keys that exist for as long as its lease, or its place in the queue, and the script leaves out what needs the others.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    keys: &'a [Arg<'a>],
    /// Empty: the script needs all keys.
    few: &'a [Arg<'a>],
    arguments: &'a [Arg<'a>],
}

impl<'a> Call<'a> {
    /// A call that is not executed while a key is missing on a node whose slot moves.
    pub(super) fn of(keys: &'a [Arg<'a>], arguments: &'a [Arg<'a>]) -> Self {
        Self {
            keys,
            few: &[],
            arguments,
        }
    }

    /// The same call with these keys for a slot that moves.
    pub(super) fn with_few(self, few: &'a [Arg<'a>]) -> Self {
        Self { few, ..self }
    }

    /// The call to send after this reply, if it refuses this one for a missing key.
    pub(super) fn after_refused_keys(self, reply: &Value) -> Option<Self> {
        let Value::ServerError(error) = reply else {
            return None;
        };
        (!self.few.is_empty() && errors::code_of(error) == "TRYAGAIN")
            .then_some(Self::of(self.few, self.arguments))
    }
}

impl Lua {
    fn new(text: &'static str) -> Self {
        Self {
            text,
            hash: sha1_smol::Sha1::from(text).digest().to_string(),
        }
    }

    /// A call of the script. If the server does not know it, it is not executed.
    pub(crate) fn call(&self, call: Call<'_>) -> Commands {
        command(&[&self.front(call.keys.len()), call.keys, call.arguments])
    }

    /// The words of a call before its keys.
    pub(super) fn front(&self, keys: usize) -> [Arg<'_>; 3] {
        let keys = Arg::Number(keys as u64);
        [Arg::Text("EVALSHA"), Arg::Text(&self.hash), keys]
    }

    /// The same with the text, which the server knows by its hash from then on.
    pub(crate) fn call_by_text(&self, call: Call<'_>) -> Commands {
        let count = Arg::Number(call.keys.len() as u64);
        let front = [Arg::Text("EVAL"), Arg::Text(self.text), count];
        command(&[&front, call.keys, call.arguments])
    }
}

/// Whether this is the reply to a call of a script that the server does not know.
pub(crate) fn is_unknown(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}
