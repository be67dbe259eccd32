//! Changes of keys on the condition that they hold given values, in transactions on a connection that nothing else uses.
//!
//! The first message of a transaction watches the keys and reads them. The second one changes those that hold their values, if
//! no other client has changed a key in between. It is all or nothing, and ends the transaction even if a change is refused.
//!
//! A transaction ends with its connection, since nothing is watched on a new one. A transaction that was abandoned halfway is
//! ended by the next transaction.

use std::{sync::Arc, time::Duration};

use redis::Value;

use crate::{
    backend::{
        owner_token::OwnerToken,
        redis::{
            protocol::replies::{answered, of_value},
            topology::key_location::KeyLocation,
            transport::{
                command::{Arg::Text, Commands, command, in_one_message},
                errors,
                reconnecting::ReconnectingConnection,
                reply,
            },
        },
    },
    failure::Failure,
};

/// How often a change is tried while other clients interfere.
pub(crate) const MOST_TRIES: u32 = 8;

/// A change of one key.
pub(crate) struct Change<'a> {
    pub(crate) key: &'a str,
    /// The value that the key must hold. Otherwise it is left alone.
    pub(crate) holds: &'a OwnerToken,
    pub(crate) command: Commands,
    /// The key is also left alone if it lasts for this many milliseconds or longer. A renewal never shortens a lease: one that
    /// only verifies it asks for the remaining time.
    pub(crate) unless_it_lasts: u64,
}

/// `true` if the key held its value, and was changed if a change was due.
pub(crate) type Changed = Result<bool, Failure>;

impl Change<'_> {
    /// Reads the replies to GET and PTTL. Returns whether the key holds the value, and whether the change is due.
    fn read(&self, seen: &[Value]) -> Result<(bool, bool), Failure> {
        match seen {
            [holder, Value::Int(left)]
                if reply::bytes(holder).is_some_and(|holder| self.holds.is(holder)) =>
            {
                // If another client removed the expiry, `left` is negative, and the expiry is set again.
                let lasts = u64::try_from(*left).is_ok_and(|left| left >= self.unless_it_lasts);
                Ok((true, !lasts))
            }
            [Value::Nil, Value::Int(_)] => Ok((false, false)),
            [holder, Value::Int(_)] if reply::bytes(holder).is_some() => Ok((false, false)),
            [Value::ServerError(error), _] if errors::code_of(error) == "WRONGTYPE" => {
                Ok((false, false))
            }
            [Value::ServerError(error), _] | [_, Value::ServerError(error)] => Err(answered(error)),
            _ => Err(errors::nonsense("the reading of a key")),
        }
    }
}

/// Changes one key.
pub(crate) async fn change(location: &KeyLocation, change: Change<'_>) -> Changed {
    // Not on the connection of the renewals, which it would delay.
    let connection = &location.server.changes;
    let (changes, within) = ([change], connection.reply_within());
    let mut made = change_all(location, connection, &changes, within).await?;
    made.pop()
        .unwrap_or_else(|| Err(errors::nonsense("a change")))
}

/// Changes keys in one transaction. Returns one result each.
pub(crate) async fn change_all(
    location: &KeyLocation,
    connection: &Arc<ReconnectingConnection>,
    changes: &[Change<'_>],
    within: Duration,
) -> Result<Vec<Changed>, Failure> {
    let keys: Vec<_> = changes.iter().map(|change| Text(change.key)).collect();
    let word = |word| command(&[&[Text(word)]]);
    for _ in 0..MOST_TRIES {
        // One transaction at a time. The mutex is locked for one try only, so that reauthenticating the connection need not wait
        // for all tries.
        let _transaction = connection.transaction().lock().await;
        // The EXEC ends an earlier transaction that was abandoned halfway. Nothing was changed in it.
        let begin = [word("EXEC"), command(&[&[Text("WATCH")], &keys])];
        let look = |look, key| command(&[&[Text(look), key]]);
        let looks = keys
            .iter()
            .flat_map(|key| [look("GET", *key), look("PTTL", *key)]);
        let first = begin.into_iter().chain(looks).chain([word("MULTI")]);
        let sent = location.send(connection, first, within, None);
        let (id, replies) = sent.await?;
        let [_, watch, seen @ .., multi] = &replies[..] else {
            return Err(errors::nonsense("the start of a transaction"));
        };
        if seen.len() != 2 * changes.len() {
            return Err(errors::nonsense("the reading of several keys"));
        }
        // A key that is not watched may get another holder before it is changed. Outside of a transaction, the changes would be
        // made on any value.
        for begun in [watch, multi] {
            of_value(begun.clone())?;
        }
        let (mut results, mut due) = (Vec::with_capacity(changes.len()), Vec::new());
        for (number, (change, seen)) in changes.iter().zip(seen.chunks(2)).enumerate() {
            let read = change.read(seen);
            if let Ok((_, true)) = read {
                due.push(number);
            }
            results.push(read.map(|(holds, _)| holds));
        }
        if due.is_empty() {
            return Ok(results);
        }
        // On a new connection, the commands could change the key of the next holder. A transaction that was begun with ASKING
        // refers to a slot in migration until its end.
        let commands = due.iter().map(|number| changes[*number].command.clone());
        let second = in_one_message(commands.chain([word("EXEC")]));
        let sent = connection.send_all_on(Some(id), second, within, None);
        match outcome(sent.await?.1) {
            // A key that the transaction watched was changed.
            Some(Value::Nil) => {}
            Some(Value::ServerError(error)) => return Err(answered(&error)),
            made => {
                // If replies to this transaction were lost, the next replies may be misplaced, too.
                let made = merged(results, &due, made);
                connection.expect_its_form(id, &made);
                return made.inspect_err(|_| connection.forget(id));
            }
        }
    }
    Err(Failure::not_now(
        "other clients changed the keys during every try",
    ))
}

/// Returns the reply to the end of a transaction, or to the command in it that was refused, which says more.
fn outcome(replies: Vec<Value>) -> Option<Value> {
    let is_refused = |reply: &Value| matches!(reply, Value::ServerError(_));
    let refused = replies.iter().position(is_refused);
    let last = replies.len().saturating_sub(1);
    replies.into_iter().nth(refused.unwrap_or(last))
}

/// Merges the replies to the changes that were due, one each. Otherwise a reply would count for another change.
fn merged(
    mut results: Vec<Changed>,
    due: &[usize],
    replies: Option<Value>,
) -> Result<Vec<Changed>, Failure> {
    let replies = match replies {
        Some(Value::Array(replies)) if replies.len() == due.len() => replies,
        _ => return Err(errors::nonsense("a transaction")),
    };
    for (number, reply) in due.iter().zip(replies) {
        results[*number] = match of_value(reply) {
            Ok(Value::Int(1) | Value::Okay) => Ok(true),
            // The key expired in the meantime.
            Ok(Value::Int(0)) => Ok(false),
            Ok(_) => Err(errors::nonsense("a change")),
            Err(failure) => Err(failure),
        };
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reply_counts_for_its_own_change() {
        let made = |replies| {
            let results = vec![Ok(true), Ok(false), Ok(true)];
            merged(results, &[0, 2], Some(Value::Array(replies)))
        };
        let all = made(vec![Value::Okay, Value::Int(0)]).expect("one each");
        let all: Vec<_> = all.into_iter().flatten().collect();
        assert_eq!(all, [true, false, false]);
        for wrong in [
            vec![],
            vec![Value::Okay],
            vec![Value::Okay, Value::Okay, Value::Int(0)],
        ] {
            let failure = made(wrong).expect_err("it is unknown which is which");
            assert!(matches!(failure, Failure::NoReply(_)), "{failure:?}");
        }
    }
}
