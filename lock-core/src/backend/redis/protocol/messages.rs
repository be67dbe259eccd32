//! The message that acquires and releases free locks, for one task or several, and the meaning of its replies for each of them.
//!
//! For many tasks, it costs the server half as much as the same number of single requests. Each lock is taken by a separate
//! command. After these, one command gives one fencing token for all, and another one checks all queues. Tokens have to grow
//! for each key, but two keys may have the same one. One script call does all releases.
//!
//! - If any queue exists, each request that got its lock checks its own queue. The lock is held meanwhile, so a queue can only
//!   have been formed since. If there is one, the lock is released by a script.
//! - A lock that this script does not release is released by the general release script: a request is waiting for it, or its
//!   lease has run out.
//!
//! Releases come first, because the next acquire of a key may be in the same message as its release. This lets no clean-up
//! overtake its acquire, since a lock is released in such a message only if none of its acquires is in flight.

use std::{sync::Arc, time::Duration};

use redis::Value;

use crate::{
    backend::{
        Acquire, Answered, Release,
        owner::Owner,
        redis::{
            protocol::{
                calls::set_if_free,
                replies::{of_value, read_id, read_released},
                scripts::{Call, RELEASE_UNCONTENDED, is_unknown},
            },
            topology::{companions::Names, key_location::KeyLocation},
            transport::{
                command::{
                    Arg::{Joined, Text, Written},
                    Commands, WriteWord, command,
                },
                exchange::{Change, Compose, MessagePart, PartReply, Subject},
                requests::Ready,
            },
        },
    },
    engine::reply::ReleaseOutcome,
    failure::Failure,
};

/// Acquires a free lock in a message that other tasks may share.
pub(super) async fn acquire(
    location: &KeyLocation,
    ready: &Ready,
    request: &Acquire,
    within: Duration,
) -> Result<PartReply, Failure> {
    let in_flight = &request.owner.in_flight;
    let (owner, change) = (request.owner.clone(), Change::Set(request.ttl));
    let composer: Arc<dyn Compose> = location.names.clone();
    let reply = ready.part(owner, change, &composer, in_flight, within);
    let mut reply = Box::pin(reply).await?;
    if reply.value == Value::Okay && reply.has_queue == Some(true) {
        let [_, _, queue, ..] = location.keys(&request.owner.full_key);
        let look = command(&[&[Text("EXISTS"), queue]]);
        let own = Box::pin(ready.one(look, in_flight, within)).await;
        // Without a reply, the lock is released, since there may be a waiter.
        reply.has_queue = Some(!matches!(own, Ok(Value::Int(0))));
    }
    Ok(reply)
}

/// Releases a lock that no request waits for, in a message that other tasks may share. `None` means that a request waits, or
/// that the lock is no longer held.
pub(super) async fn release(
    location: &KeyLocation,
    ready: &Ready,
    request: &Release,
) -> Result<Option<Answered<ReleaseOutcome>>, Failure> {
    let (in_flight, within) = (
        &request.owner.released_on,
        ready.reconnecting.reply_within(),
    );
    let (owner, change) = (request.owner.clone(), Change::Delete);
    let composer: Arc<dyn Compose> = location.names.clone();
    let reply = ready.part(owner, change, &composer, in_flight, within);
    let mut reply = Box::pin(reply).await?.value;
    if let Value::ServerError(_) = reply {
        // Perhaps another key of the message caused the error, or the server has forgotten the script. This call makes the
        // script known again for the next message.
        let [lock, _, queue, ..] = location.keys(&request.owner.full_key);
        let (keys, token) = ([lock, queue], [Written(&request.owner.token)]);
        let call = Call::of(&keys, &token);
        let script = if is_unknown(&reply) {
            RELEASE_UNCONTENDED.call_by_text(call)
        } else {
            RELEASE_UNCONTENDED.call(call)
        };
        reply = Box::pin(ready.one(script, in_flight, within)).await?;
    }
    match reply {
        Value::Int(0) | Value::Array(_) => Ok(None),
        reply => read_released(&of_value(reply)?, ready.id()).map(Some),
    }
}

/// The key of a lock, whose value is the owner token.
impl Subject for Owner {
    fn key(&self) -> &str {
        &self.full_key
    }

    fn value(&self) -> &dyn WriteWord {
        &self.token
    }
}

/// Requests for locks with the same companion keys may share a message: those on one server, or in one slot of a cluster.
impl Compose for Names {
    fn compose(&self, parts: &[MessagePart], commands: &mut Commands) {
        let releases = || parts.iter().filter(|part| part.change == Change::Delete);
        let count = releases().count();
        if count > 0 {
            let front = RELEASE_UNCONTENDED.front(2 * count);
            let locks = releases().map(|part| Text(part.subject.key()));
            let queues = releases().map(|part| Joined(&self.queue, part.subject.key()));
            let tokens = releases().map(|part| Written(part.subject.value()));
            commands.begin(front.len() + 3 * count);
            for word in front.into_iter().chain(locks).chain(queues).chain(tokens) {
                commands.word(word);
            }
        }
        if count == parts.len() {
            return;
        }
        for part in parts {
            if let Change::Set(ttl) = part.change {
                commands.add(&[&set_if_free(&*part.subject, ttl)]);
            }
        }
        commands.append(&self.next_id);
        commands.begin(1 + parts.len() - count);
        commands.word(Text("EXISTS"));
        for part in parts {
            if let Change::Set(_) = part.change {
                commands.word(Joined(&self.queue, part.subject.key()));
            }
        }
    }

    fn distribute(&self, parts: Vec<MessagePart>, replies: Vec<Value>) {
        let is_release = |part: &&MessagePart| part.change == Change::Delete;
        let releases = parts.iter().filter(is_release).count();
        let mut replies = replies.into_iter();
        let of_script = (releases > 0).then(|| replies.next().unwrap_or_default());
        let last = match replies.as_slice() {
            [.., id, queues] => PartReply {
                value: Value::Nil,
                id: read_id(id),
                has_queue: Some(!matches!(queues, Value::Int(0))),
            },
            _ => PartReply::default(),
        };
        let mut number = 0;
        for part in parts {
            let reply = match part.change {
                Change::Set(_) => PartReply {
                    value: replies.next().unwrap_or_default(),
                    ..last.clone()
                },
                Change::Delete => {
                    number += 1;
                    PartReply {
                        value: outcome(of_script.as_ref(), number - 1, releases),
                        ..PartReply::default()
                    }
                }
            };
            part.answer(reply);
        }
    }
}

/// Returns the script's reply about one of the locks that it releases. It replies once for all of them, or with one value for
/// each.
fn outcome(reply: Option<&Value>, number: usize, count: usize) -> Value {
    match reply {
        Some(Value::Array(each)) => each.get(number).cloned().unwrap_or_default(),
        Some(Value::Int(released)) => {
            let are_all = usize::try_from(*released) == Ok(count);
            Value::Int(are_all.into())
        }
        other => other.cloned().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::{backend::owner::Entry, mode::Mode};

    /// Returns a release or an acquire, and the receiver of its reply.
    fn part(is_release: bool) -> (MessagePart, oneshot::Receiver<PartReply>) {
        let entry = Entry {
            number: 1,
            ttl: Duration::ZERO,
            mode: Mode::Exclusive,
        };
        let change = if is_release {
            Change::Delete
        } else {
            Change::Set(entry.ttl)
        };
        MessagePart::new(Owner::of_entry(entry), change)
    }

    fn distributed(are_releases: &[bool], replies: Vec<Value>) -> Vec<PartReply> {
        let (parts, answers): (Vec<_>, Vec<_>) = are_releases.iter().copied().map(part).unzip();
        Names::of_a_server("").distribute(parts, replies);
        let reply = |mut answer: oneshot::Receiver<_>| answer.try_recv().expect("a reply");
        answers.into_iter().map(reply).collect()
    }

    fn of_lock(set: Value) -> PartReply {
        PartReply {
            value: set,
            id: Some((1, 1)),
            has_queue: Some(false),
        }
    }

    fn of_release(outcome: Value) -> PartReply {
        PartReply {
            value: outcome,
            ..PartReply::default()
        }
    }

    #[test]
    fn each_request_of_a_message_has_its_own_replies() {
        let parts = [true, false, false, true];
        let id = || Value::SimpleString("1-1".into());
        let locked = [Value::Okay, Value::Nil, id(), Value::Int(0)];
        let replies_with = |of_script: Value| {
            let replies = [of_script].into_iter().chain(locked.clone()).collect();
            distributed(&parts, replies)
        };
        let expected = |first, last| {
            [
                of_release(first),
                of_lock(Value::Okay),
                of_lock(Value::Nil),
                of_release(last),
            ]
        };
        let [yes, no] = [1, 0].map(Value::Int);
        assert_eq!(
            replies_with(Value::Int(2)),
            expected(yes.clone(), yes.clone())
        );
        assert_eq!(
            replies_with(Value::Int(1)),
            expected(no.clone(), no.clone())
        );
        let each = Value::Array(vec![no.clone(), yes.clone()]);
        assert_eq!(replies_with(each), expected(no, yes));
        assert_eq!(replies_with(Value::Nil), expected(Value::Nil, Value::Nil));
        let locks_alone = distributed(&parts[1..3], locked.to_vec());
        assert_eq!(locks_alone, [of_lock(Value::Okay), of_lock(Value::Nil)]);
        let release_alone = distributed(&parts[..1], vec![Value::Int(1)]);
        assert_eq!(release_alone, [of_release(Value::Int(1))]);
    }
}
