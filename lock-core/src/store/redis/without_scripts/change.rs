//! Changes of keys on the condition that they hold given values: by a command that compares, or in a transaction.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, Value};
use tokio::sync::Mutex;

use crate::store::{
    Failure,
    in_flight::ConnectionId,
    redis::{
        connection::{
            CLOCK,
            capabilities::Compare,
            errors,
            handshake::Purpose,
            reconnecting::ReconnectingConnection,
            wire::command::{
                Arg::{self, Number, Text},
                command, pipeline,
            },
        },
        scripts::{NodeRole, send_to},
    },
};

/// How often a change is tried while other clients disturb it.
pub(super) const MOST_TRIES: u32 = 8;

/// A change of one key.
#[derive(Clone, Copy)]
pub(super) struct Change<'a> {
    pub(super) key: &'a str,
    /// The value that the key must hold: otherwise it is left alone.
    pub(super) holds: &'a str,
    pub(super) becomes: Becomes<'a>,
}

/// What a key is changed into. Times are in milliseconds.
#[derive(Clone, Copy)]
pub(super) enum Becomes<'a> {
    Nothing,
    /// The same value, for this long at least.
    Same(u64),
    /// Another value, which expires after this long, or never.
    Other(Arg<'a>, Option<u64>),
}

/// Whether the key held its value, and was changed if a change was due.
pub(super) type Changed = Result<bool, Failure>;

impl Change<'_> {
    /// The command that changes the key if it holds the value. In a transaction, which watches the key, it does not compare.
    pub(super) fn command(&self, by: Compare) -> Cmd {
        let (key, holds) = (Text(self.key), Text(self.holds));
        let set = |value, ttl: Option<u64>| {
            let mut set = command(&[&[Text("SET"), key, value]]);
            if by != Compare::Watch {
                set.arg(Text("IFEQ")).arg(holds);
            }
            if let Some(ttl) = ttl {
                set.arg(Text("PX")).arg(Number(ttl));
            }
            set
        };
        match (self.becomes, by) {
            (Becomes::Nothing, Compare::Delifeq) => command(&[&[Text("DELIFEQ"), key, holds]]),
            (Becomes::Nothing, Compare::Watch) => command(&[&[Text("DEL"), key]]),
            (Becomes::Same(ttl), Compare::Watch) => {
                command(&[&[Text("PEXPIRE"), key, Number(ttl)]])
            }
            (Becomes::Same(ttl), _) => set(holds, Some(ttl)),
            (Becomes::Other(value, ttl), _) => set(value, ttl),
        }
    }

    fn is_due(&self, left: u64) -> bool {
        match self.becomes {
            // Never shortened: a renewal that only verifies the lease asks for the remaining time.
            Becomes::Same(ttl) => left < ttl,
            Becomes::Nothing | Becomes::Other(..) => true,
        }
    }

    /// Reads the replies to GET and PTTL: how many milliseconds the key has left, if it holds the value.
    fn read_left(&self, seen: &[Value]) -> Result<Option<u64>, Failure> {
        match seen {
            [Value::BulkString(holder), Value::Int(left)] if **holder == *self.holds.as_bytes() => {
                // Another client removed its expiry: it gets one again.
                Ok(Some(u64::try_from(*left).unwrap_or(0)))
            }
            [Value::BulkString(_) | Value::Nil, Value::Int(_)] => Ok(None),
            [Value::ServerError(error), _] if errors::code_of(error) == "WRONGTYPE" => Ok(None),
            [Value::ServerError(error), _] | [_, Value::ServerError(error)] => {
                Err(errors::answered(error))
            }
            _ => Err(errors::nonsense("a look at a key")),
        }
    }
}

/// Whether a command that compares found the value.
pub(super) fn is_done(answer: Option<Value>) -> Changed {
    match answer {
        Some(Value::Int(1) | Value::Okay) => Ok(true),
        Some(Value::Int(0) | Value::Nil) => Ok(false),
        // A key of another type belongs to another client, too.
        Some(Value::ServerError(error)) if errors::code_of(&error) == "WRONGTYPE" => Ok(false),
        Some(Value::ServerError(error)) => Err(errors::answered(&error)),
        _ => Err(errors::nonsense("a comparison")),
    }
}

/// A connection for changes, of which there is one batch at a time.
#[derive(Debug)]
pub(super) struct Changes {
    pub(super) connection: Arc<ReconnectingConnection>,
    turn: Mutex<()>,
}

/// What a look at some keys found.
struct Looked {
    connection: ConnectionId,
    results: Vec<Changed>,
    /// The indexes of the changes that are to be made.
    due: Vec<usize>,
}

impl Looked {
    /// Takes in the replies to the changes that were due: one each. Otherwise a reply would count for another change.
    fn with(mut self, answers: Vec<Value>) -> Result<Vec<Changed>, Failure> {
        if answers.len() != self.due.len() {
            return Err(errors::nonsense("some changes"));
        }
        for (number, answer) in self.due.into_iter().zip(answers) {
            self.results[number] = is_done(Some(answer));
        }
        Ok(self.results)
    }
}

impl Changes {
    /// To the server of another connection. Connects with the first change.
    pub(super) fn to(connection: &ReconnectingConnection) -> Self {
        let another = connection.another(Purpose::OtherCommands, connection.timing());
        Self {
            connection: Arc::new(another),
            turn: Mutex::default(),
        }
    }

    /// Changes one key.
    pub(super) async fn make(&self, by: Compare, change: Change<'_>) -> Changed {
        let within = self.connection.reply_within();
        let mut made = self
            .make_all(by, NodeRole::SlotOwner, &[change], within)
            .await?;
        let none = || Err(errors::nonsense("a change"));
        made.pop().unwrap_or_else(none)
    }

    /// Changes keys, in one transaction if there can be one about all of them.
    pub(super) async fn make_all(
        &self,
        by: Compare,
        node_role: NodeRole,
        changes: &[Change<'_>],
        within: Duration,
    ) -> Result<Vec<Changed>, Failure> {
        let _turn = self.turn.lock().await;
        let started = CLOCK.now();
        if let Some(made) = self.together(by, node_role, changes, within).await? {
            return Ok(made);
        }
        let mut all = Vec::with_capacity(changes.len());
        for one in changes.chunks(1) {
            let left = within.saturating_sub(CLOCK.now().since(started));
            match self.together(by, node_role, one, left).await {
                Ok(made) => all.extend(made.into_iter().flatten()),
                Err(failure) => all.push(Err(failure)),
            }
        }
        Ok(all)
    }

    /// Called with `turn` locked. Returns `None` if one transaction cannot contain all the keys: they have several slots, or some
    /// keys of their slot are being moved.
    async fn together(
        &self,
        by: Compare,
        node_role: NodeRole,
        changes: &[Change<'_>],
        within: Duration,
    ) -> Result<Option<Vec<Changed>>, Failure> {
        for _ in 0..MOST_TRIES {
            // For one try only: the connection is not to wait for all of them until it is authenticated anew.
            let _transaction = self.connection.transaction.lock().await;
            let Some(looked) = self.look(by, node_role, changes, within).await? else {
                return Ok(None);
            };
            let due = looked.due.iter().map(|number| changes[*number].command(by));
            let mut commands: Vec<_> = due.collect();
            if commands.is_empty() {
                return Ok(Some(looked.results));
            }
            let answers = if by == Compare::Watch {
                commands.push(command(&[&[Text("EXEC")]]));
                // On a new connection, the commands could change the key of the next holder. A transaction that was begun with
                // ASKING is about a slot in migration until its end.
                let commit = pipeline(commands);
                let commit = self
                    .connection
                    .send_all_on(looked.connection, commit, within);
                match commit.await?.pop() {
                    // A key that the transaction watched was changed.
                    Some(Value::Nil) => continue,
                    Some(Value::Array(answers)) => answers,
                    Some(Value::ServerError(error)) => return Err(errors::answered(&error)),
                    _ => return Err(errors::nonsense("a transaction")),
                }
            } else {
                let sent = send_to(&self.connection, node_role, commands, within, None);
                sent.await?.1
            };
            let connection = looked.connection;
            let made = looked.with(answers);
            // What is wrong with its replies may be wrong with the next ones, too.
            return made
                .map(Some)
                .inspect_err(|_| self.connection.forget(connection));
        }
        Err(Failure::not_now(
            "other clients changed the keys at each try",
        ))
    }

    /// Looks at keys. With [`Compare::Watch`], begins a transaction about them, too.
    async fn look(
        &self,
        by: Compare,
        node_role: NodeRole,
        changes: &[Change<'_>],
        within: Duration,
    ) -> Result<Option<Looked>, Failure> {
        let (mut before, mut after) = (Vec::new(), None);
        if by == Compare::Watch {
            let keys: Vec<_> = changes.iter().map(|change| Text(change.key)).collect();
            // An earlier transaction may have been given up half way.
            let (discard, unwatch) = ([Text("DISCARD")], [Text("UNWATCH")]);
            before.extend([command(&[&discard]), command(&[&unwatch])]);
            before.push(command(&[&[Text("WATCH")], &keys]));
            after = Some(command(&[&[Text("MULTI")]]));
        }
        let looks = changes.iter().flat_map(|change| {
            ["GET", "PTTL"].map(|look| command(&[&[Text(look), Text(change.key)]]))
        });
        let watched = before.len();
        let commands: Vec<_> = before.into_iter().chain(looks).chain(after).collect();
        let count = commands.len();
        let sent = send_to(&self.connection, node_role, commands, within, None);
        let (connection, mut answers) = sent.await?;
        if answers.len() != count {
            return Err(errors::nonsense("a look at some keys"));
        }
        let watch = answers.drain(..watched).next_back();
        if let Some(watch) = watch {
            let is_split = matches!(&watch, Value::ServerError(error)
                if matches!(error.code(), "TRYAGAIN" | "CROSSSLOT"));
            if is_split && changes.len() > 1 {
                return Ok(None);
            }
            // A key that is not watched may get another holder before it is changed.
            errors::of_value(watch)?;
            // Outside a transaction, the next commands would act on any value.
            errors::of_value(answers.pop().unwrap_or(Value::Nil))?;
        }
        let mut looked = Looked {
            connection,
            results: Vec::with_capacity(changes.len()),
            due: Vec::new(),
        };
        for (number, (change, seen)) in changes.iter().zip(answers.chunks(2)).enumerate() {
            let left = change.read_left(seen);
            if matches!(left, Ok(Some(left)) if change.is_due(left)) {
                looked.due.push(number);
            }
            looked.results.push(left.map(|left| left.is_some()));
        }
        Ok(Some(looked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked() -> Looked {
        Looked {
            connection: ConnectionId::next(),
            results: vec![Ok(true), Ok(false), Ok(true)],
            due: vec![0, 2],
        }
    }

    #[test]
    fn each_reply_counts_for_its_own_change() {
        let made = looked().with(vec![Value::Okay, Value::Int(0)]);
        let made: Vec<_> = made.expect("one each").into_iter().flatten().collect();
        assert_eq!(made, [true, false, false]);
        for wrong in [
            vec![],
            vec![Value::Okay],
            vec![Value::Okay, Value::Okay, Value::Int(0)],
        ] {
            let failure = looked()
                .with(wrong)
                .expect_err("it is unknown which is which");
            assert!(matches!(failure, Failure::NoAnswer(_)), "{failure:?}");
        }
    }
}
