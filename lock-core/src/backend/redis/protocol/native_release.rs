//! Releases a lock by one command of the server, if no other client is known to want it.
//!
//! The command deletes the key only if it holds the owner token. The queue is looked at behind it, in the same message. Other
//! clients' commands may be executed in between. A request that came before the deletion is in the queue when that is looked at, and
//! one that comes later finds the lock free.
//!
//! If there is a queue, the next try of the release is a script, which finds no key and serves the queue. It is queued at once, and the
//! caller does not wait for it. Until it is executed, the lock is free with a queue. A request by plain commands finds the queue then,
//! and gives the lock back (`one_message.rs`). A request by script serves the queue first. If the process ends before the script leaves,
//! the next check of a waiter serves the queue.
//!
//! A lock that is kept for a while, is not exclusive, or is on several servers is released by a script. So is one with an entry that
//! may be queued, or an acquire that may be in flight. A try that is repeated is a script, and so is what follows an error reply, such
//! as a redirect.

use redis::Value;

use crate::{
    backend::{
        Release, Released,
        redis::{
            protocol::replies::{NO_LOCK, answered},
            topology::key_location::KeyLocation,
            transport::{
                capabilities::DeleteIf,
                command::{
                    Arg::{Text, Written},
                    command, in_one_message,
                },
                errors,
                ready::Ready,
            },
        },
    },
    engine::reply::ReleaseOutcome,
    failure::Failure,
};

/// Releases the lock. `None`: the script is to do it.
pub(super) async fn release(
    delete_if: DeleteIf,
    location: &KeyLocation,
    ready: &Ready,
    request: &Release,
) -> Result<Option<Released>, Failure> {
    let [lock, _, queue, ..] = location.keys(&request.owner.full_key);
    let commands = in_one_message([
        delete_if.command(lock, Written(&request.owner.token)),
        command(&[&[Text("EXISTS"), queue]]),
    ]);
    let within = ready.reconnecting.reply_within();
    let sent = ready.several(&commands, request.in_flight(), within);
    let mut replies = sent.await?.into_iter();
    let mut next = || replies.next().unwrap_or(Value::Nil);
    let outcome = match (next(), next()) {
        (Value::Int(1), Value::Int(0)) => ReleaseOutcome::Released,
        (Value::Int(1), _) => ReleaseOutcome::ReleasedUnserved,
        (Value::Int(0), Value::Int(0)) => ReleaseOutcome::NotOurs,
        // The lease may have run out, and the script also serves the queue then.
        (Value::Int(0), _) => return Ok(None),
        (Value::ServerError(error), _) => {
            ready.current.note_error_of_delete_if(&error);
            // Redis has an error of its own for a key of another type.
            return Err(if errors::details_of(&error).contains("string type") {
                Failure::not_now(NO_LOCK)
            } else {
                answered(&error)
            });
        }
        _ => return Err(errors::nonsense("a release")),
    };
    Ok(Some(Released {
        outcome,
        connection: ready.id(),
    }))
}
