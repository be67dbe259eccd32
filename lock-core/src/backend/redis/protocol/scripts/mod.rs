//! The scripts, which are called by their hash, or by their text if the server does not know the hash.
//!
//! The data of a lock are described in `queue.lua`. Rejected for them:
//!
//! - a list as the queue: a check had to read all of it, and 600 waiting processes used a whole core;
//! - two sets for shared and other requests: an exclusive hand-over would take more commands than with two bands of scores;
//! - a sorted set at the key of a shared lock: several other clients raise an error there, but treat a string as a busy lock;
//! - the cut of a shared phase in the marker: it was lost if the first part of a batch ended before the rest was granted;
//! - a hash for the cut: the set of the beats already exists;
//! - a counter of permits: a crash would leave it wrong;
//! - granting permits only by a free number below `n`: a fifth holder could enter with `n = 4`.

mod texts;

use std::sync::LazyLock;

use redis::{ServerErrorKind, Value};

use crate::backend::redis::transport::command::{Arg, Commands, command};

macro_rules! programs {
    ($($name:ident)+) => {
        $(pub(super) static $name: LazyLock<Lua> = LazyLock::new(|| Lua::new(texts::$name));)+
    };
}

programs! { ACQUIRE RELEASE RELEASE_UNCONTENDED FORCE_RELEASE RENEW INSPECT TRIAL FORGET PROPOSE MARK }

/// One script. Keys and values are passed to it only as arguments, never as part of its text.
pub(crate) struct Lua {
    text: &'static str,
    hash: String,
}

/// The keys and arguments of a script call.
///
/// A call declares every key that its script may use, since some servers refuse all others. But while a slot moves between two
/// nodes of a cluster, both refuse a call that declares both existing and missing keys: with `TRYAGAIN` or, at the
/// source before Redis 7, with `ASK`. Such a call was not executed. It is sent again, to the same node, with the few
/// keys that exist for as long as its lease, or its place in the queue, and the script skips the steps that need the
/// others. The lock has left a node only if that node refuses these keys, too. The target is not asked earlier, since
/// it replies that a lock still at the source does not exist.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    keys: &'a [Arg<'a>],
    /// Empty if the script needs all keys.
    few: &'a [Arg<'a>],
    arguments: &'a [Arg<'a>],
}

impl<'a> Call<'a> {
    /// Creates a call that is not executed while a key is missing on a node whose slot is being moved.
    pub(super) fn of(keys: &'a [Arg<'a>], arguments: &'a [Arg<'a>]) -> Self {
        Self {
            keys,
            few: &[],
            arguments,
        }
    }

    /// Returns this call with these keys to use while its slot is being moved.
    pub(super) fn with_few(self, few: &'a [Arg<'a>]) -> Self {
        Self { few, ..self }
    }

    /// Returns the call to send after this reply, if it refuses this one because of a missing key.
    pub(super) fn after_refused_keys(self, reply: &Value) -> Option<Self> {
        let Value::ServerError(error) = reply else {
            return None;
        };
        let has_fewer = !self.few.is_empty() && self.few.len() < self.keys.len();
        // Only the server itself answers with these codes, before it executes anything: an error inside a script has another.
        let is_refused = matches!(error.code(), "TRYAGAIN" | "ASK");
        (has_fewer && is_refused).then_some(Self::of(self.few, self.arguments))
    }
}

impl Lua {
    fn new(text: &'static str) -> Self {
        Self {
            text,
            hash: sha1_smol::Sha1::from(text).digest().to_string(),
        }
    }

    /// Calls the script by its hash. If the server does not know the hash, nothing is executed.
    pub(crate) fn call(&self, call: Call<'_>) -> Commands {
        command(&[&self.front(call.keys.len()), call.keys, call.arguments])
    }

    /// Returns the words of a call before its keys.
    pub(super) fn front(&self, keys: usize) -> [Arg<'_>; 3] {
        let keys = Arg::Number(keys as u64);
        [Arg::Text("EVALSHA"), Arg::Text(&self.hash), keys]
    }

    /// Calls the script by its text, which the server knows by its hash from then on.
    pub(crate) fn call_by_text(&self, call: Call<'_>) -> Commands {
        let count = Arg::Number(call.keys.len() as u64);
        let front = [Arg::Text("EVAL"), Arg::Text(self.text), count];
        command(&[&front, call.keys, call.arguments])
    }
}

/// Returns `true` if this is the reply to a call of a script that the server does not know.
pub(crate) fn is_unknown(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}
