//! A change of a key on the condition that it holds a given value.

use redis::Value;

use crate::store::{
    Failure,
    redis::connection::{
        capabilities::Compare,
        errors,
        wire::command::Arg::{self, Number, Text},
    },
};

/// A change of one key.
#[derive(Clone, Copy)]
pub(super) struct Change<'a> {
    pub(super) key: &'a str,
    /// Otherwise the key is left alone.
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

impl<'a> Change<'a> {
    /// The command that changes the key if it holds the value.
    pub(super) fn comparing(&self, by: Compare) -> Vec<Arg<'a>> {
        let (key, holds) = (Text(self.key), Text(self.holds));
        let set = |value| vec![Text("SET"), key, value, Text("IFEQ"), holds];
        match self.becomes {
            Becomes::Nothing if by == Compare::Delifeq => vec![Text("DELIFEQ"), key, holds],
            Becomes::Nothing => vec![Text("DELEX"), key, Text("IFEQ"), holds],
            Becomes::Same(ttl) => with_expiry(set(holds), Some(ttl)),
            Becomes::Other(value, ttl) => with_expiry(set(value), ttl),
        }
    }

    /// The command that changes the key, whatever it holds: for a transaction that watches it.
    pub(super) fn watched(&self) -> Vec<Arg<'a>> {
        let key = Text(self.key);
        match self.becomes {
            Becomes::Nothing => vec![Text("DEL"), key],
            Becomes::Same(ttl) => vec![Text("PEXPIRE"), key, Number(ttl)],
            Becomes::Other(value, ttl) => with_expiry(vec![Text("SET"), key, value], ttl),
        }
    }

    /// The commands that tell what the key holds, and for how long.
    pub(super) fn look(&self) -> [Vec<Arg<'a>>; 2] {
        let key = Text(self.key);
        [vec![Text("GET"), key], vec![Text("PTTL"), key]]
    }

    fn is_due(&self, left: u64) -> bool {
        match self.becomes {
            // Never shortened: a check asks for the shortest possible time.
            Becomes::Same(ttl) => left < ttl,
            Becomes::Nothing | Becomes::Other(..) => true,
        }
    }
}

fn with_expiry(mut command: Vec<Arg<'_>>, ttl: Option<u64>) -> Vec<Arg<'_>> {
    command.extend(ttl.into_iter().flat_map(|ttl| [Text("PX"), Number(ttl)]));
    command
}

/// Whether each key held its value, and was changed if a change was due.
pub(super) type Changed = Result<bool, Failure>;

/// What a look at the keys of some changes found.
pub(super) struct Looked {
    results: Vec<Changed>,
    due: Vec<usize>,
}

impl Looked {
    /// Reads the replies to [`Change::look`].
    pub(super) fn read(changes: &[Change<'_>], answers: Vec<Value>) -> Result<Self, Failure> {
        if answers.len() != changes.len() * 2 {
            return Err(errors::nonsense("a look at some keys"));
        }
        let (mut answers, mut due) = (answers.into_iter(), Vec::new());
        let mut read = |(number, change): (usize, &Change<'_>)| {
            let left = read_look(answers.next(), answers.next(), change.holds)?;
            if left.is_some_and(|left| change.is_due(left)) {
                due.push(number);
            }
            Ok(left.is_some())
        };
        let results = changes.iter().enumerate().map(&mut read).collect();
        Ok(Self { results, due })
    }

    /// The changes that are to be made.
    pub(super) fn due<'c, 'a>(&self, changes: &'c [Change<'a>]) -> Vec<&'c Change<'a>> {
        self.due.iter().map(|number| &changes[*number]).collect()
    }

    /// With the replies to those changes.
    pub(super) fn done(mut self, answers: impl IntoIterator<Item = Value>) -> Vec<Changed> {
        for (number, answer) in self.due.into_iter().zip(answers) {
            self.results[number] = is_done(Some(answer));
        }
        self.results
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

/// Reads the replies to GET and PTTL: how many milliseconds the key has left, if it holds the value.
fn read_look(
    holder: Option<Value>,
    left: Option<Value>,
    holds: &str,
) -> Result<Option<u64>, Failure> {
    match (holder, left) {
        (Some(Value::BulkString(holder)), Some(Value::Int(left)))
            if *holder == *holds.as_bytes() =>
        {
            // Another client removed its expiry: it gets one again.
            Ok(Some(u64::try_from(left).unwrap_or(0)))
        }
        (Some(Value::BulkString(_) | Value::Nil), Some(Value::Int(_))) => Ok(None),
        (Some(Value::ServerError(error)), _) if errors::code_of(&error) == "WRONGTYPE" => Ok(None),
        (Some(Value::ServerError(error)), _) | (_, Some(Value::ServerError(error))) => {
            Err(errors::answered(&error))
        }
        _ => Err(errors::nonsense("a look at a key")),
    }
}
