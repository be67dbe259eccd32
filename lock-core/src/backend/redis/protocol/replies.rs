//! The meaning of the servers' replies.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use redis::{ServerError, Value};

use crate::{
    backend::{
        Answered, OTHER_MODE,
        in_flight::{ConnectionId, InFlight},
        owner_token::sighting_of,
        redis::transport::{errors, exchange::PartReply, reply},
    },
    engine::reply::{
        AcquireOutcome, Busy, Contended, Expiry, Grant, QueueMode, ReleaseOutcome, Renewed,
        WakeUpMode,
    },
    failure::Failure,
    fencing::{FencingBlock, LARGEST_TOKEN, PER_MILLI},
    inspect::{Holder, LeaseInfo, Sighting, Waiter},
    key::Shown,
    mode::LockMode,
};

/// Returns the failure for an error reply from the server to a command about a lock.
pub(crate) fn answered(error: &ServerError) -> Failure {
    let details = errors::shown_details(errors::details_of(error));
    match errors::code_of(error) {
        "WRONGTYPE" => Failure::invalid(NO_LOCK),
        "LOCKMODE" => Failure::invalid(OTHER_MODE),
        "NOPERM" if errors::is_about_keys(&details) => errors::denied(format!(
            "NOPERM {details}: grant this user the keys that begin with the manager's prefix, as in `~lock:*`, and `~__lock_core__:*`"
        )),
        // A script with this reply has changed nothing.
        code if details.contains(OUT_OF_BOUNDS) => Failure::refused(format!("{code} {details}")),
        _ => errors::answered(error),
    }
}

/// Turns an error reply from the server into a failure.
pub(crate) fn of_value(value: Value) -> Result<Value, Failure> {
    match value {
        Value::ServerError(error) => Err(answered(&error)),
        value => Ok(value),
    }
}

/// Like [`of_value`], for a request that may take a lock. A refusal settles all requests that were sent earlier on its
/// connection, if none was sent on another connection.
pub(crate) fn of_reply(
    value: Value,
    connection: ConnectionId,
    in_flight: &InFlight,
) -> Result<Value, Failure> {
    let reply = of_value(value);
    if reply.as_ref().is_err_and(Failure::is_definite) {
        note_answered(in_flight, connection);
    }
    reply
}

/// Notes that a request on this connection has a final reply.
pub(crate) fn note_answered(in_flight: &InFlight, connection: ConnectionId) {
    if in_flight.is_settled_by(connection) {
        in_flight.note_all_answered();
    }
}

/// The message about a key of another type.
pub(crate) const NO_LOCK: &str =
    "the key holds something that is not a lock: choose another key or prefix";

/// The beginning of the error by which a script reports that it cannot issue a fencing token.
const OUT_OF_BOUNDS: &str = "no fencing token can be issued";

/// Returns the failure to issue a fencing token where there are no scripts. `clock` is the key of the fencing clock.
pub(crate) fn far_behind(clock: &str, known: u64) -> Failure {
    let (millis, sequence) = (known / PER_MILLI, known % PER_MILLI);
    Failure::refused(format!(
        "{OUT_OF_BOUNDS}: this process knows the token {known}, and the fencing clock of this server is more than an hour behind it. \
         If the server's clock was set back over a loss of data, set it right, or run: XADD {clock} MAXLEN 0 {millis}-{sequence} 0 0"
    ))
}

/// Returns the failure for a fencing clock whose key holds something else, or an id that no token can exceed.
pub(crate) fn no_clock(clock: &str) -> Failure {
    Failure::refused(format!(
        "{OUT_OF_BOUNDS}: {clock} is not a fencing clock, so another client must have written it. Run: DEL {clock}"
    ))
}

/// Collects the replies to the plain commands that take a key: `SET`, `XADD`, and, if scripts can be run, `EXISTS` of the
/// queue.
pub(crate) fn of_plain(replies: &mut [Value]) -> Result<PartReply, Failure> {
    let (value, id, has_queue) = match replies {
        [set, id] => (set, id, None),
        [set, id, queue] => (set, id, Some(!matches!(queue, Value::Int(0)))),
        _ => return Err(errors::nonsense("an acquire")),
    };
    Ok(PartReply {
        value: std::mem::take(value),
        id: read_id(id),
        has_queue,
    })
}

/// Reads the replies to the plain commands. If the key is busy, there is no outcome yet. `known` is the largest token that the
/// process knew when it sent the request.
pub(crate) fn read_plain(
    reply: PartReply,
    connection: ConnectionId,
    known: u64,
    in_flight: &InFlight,
) -> Result<Option<Answered<AcquireOutcome>>, Failure> {
    match reply.value {
        Value::Okay => {}
        Value::Nil => {
            note_answered(in_flight, connection);
            return Ok(None);
        }
        Value::ServerError(error) => {
            drop(of_reply(Value::ServerError(error), connection, in_flight)?);
        }
        // This is the reply to another request.
        _ => return Err(errors::nonsense("an acquire")),
    }
    let outcome = match (reply.id.and_then(token), reply.has_queue) {
        (Some(token), None | Some(false)) if token > known => AcquireOutcome::Granted(Grant {
            tokens: FencingBlock::new(token, 1),
            ..Grant::ALONE
        }),
        // The key is released by a script, which grants it to the first waiter. The next request is a script, too, and advances
        // the clock, or reports why it cannot.
        (_, Some(_)) => AcquireOutcome::Undo,
        // The next request finds its owner token in the key, and advances the clock.
        (_, None) => return Err(Failure::no_reply("the fencing clock gave no larger token")),
    };
    Ok(Some(Answered {
        outcome,
        order: Some(connection),
    }))
}

/// Reads an id of a stream: milliseconds, and a sequence number within them.
pub(crate) fn read_id(id: &Value) -> Option<(u64, u64)> {
    let (millis, sequence) = reply::text(id)?.split_once('-')?;
    Some((millis.parse().ok()?, sequence.parse().ok()?))
}

/// Returns the fencing token of an id of the fencing clock, unless the sequence number is too large for one.
pub(crate) fn token((millis, sequence): (u64, u64)) -> Option<u64> {
    let token = millis.checked_mul(PER_MILLI)?.checked_add(sequence)?;
    (sequence < PER_MILLI && token < LARGEST_TOKEN).then_some(token)
}

pub(crate) fn read_acquired(
    reply: &Value,
    connection: ConnectionId,
    queue_mode: QueueMode,
) -> Result<Answered<AcquireOutcome>, Failure> {
    let mut outcome = read_outcome(reply).ok_or_else(|| errors::nonsense("an acquire"))?;
    if let AcquireOutcome::Busy(busy) = &mut outcome
        && queue_mode == QueueMode::DoNotQueue
    {
        busy.wake_up = WakeUpMode::Poll;
    }
    Ok(Answered {
        outcome,
        order: Some(connection),
    })
}

impl AcquireOutcome {
    /// Returns `true` if the request need not wait: it was granted the lock, or got a stored result.
    pub(crate) fn found_it_free(&self) -> bool {
        matches!(self, Self::Granted(_) | Self::Done(_))
    }
}

pub(crate) fn read_released(
    reply: &Value,
    connection: ConnectionId,
) -> Result<Answered<ReleaseOutcome>, Failure> {
    let outcome = match reply {
        Value::Int(1) => ReleaseOutcome::Released,
        Value::Int(2) => ReleaseOutcome::NotStored,
        Value::Int(0) => ReleaseOutcome::NotOurs,
        _ => return Err(errors::nonsense("a release")),
    };
    Ok(Answered {
        outcome,
        order: Some(connection),
    })
}

pub(crate) fn read_outcome(reply: &Value) -> Option<AcquireOutcome> {
    let words = reply.as_sequence()?;
    if let [Value::Int(2), Value::BulkString(result)] = words {
        return Some(AcquireOutcome::Done(result.as_slice().into()));
    }
    // The last word of a reply is the holder's label. Only the first reply to a waiter has none; it also lacks a stamp, and
    // does not say whether the waiter is next.
    let (numbers, holder) = match words {
        [numbers @ .., holder @ Value::BulkString(_)] => (numbers, label(holder)),
        numbers => (numbers, None),
    };
    let (left, position, ours, is_next, stamp) = match reply::numbers_of(numbers)?[..] {
        [1, first, count] => {
            return Some(AcquireOutcome::Granted(read_fencing(first, count)?.into()));
        }
        // A lock that is not exclusive.
        [1, fencing, contended, permit, more] => {
            return Some(AcquireOutcome::Granted(Grant {
                tokens: read_fencing(fencing, 1)?,
                permit: Some(u16::try_from(permit).ok()?),
                is_contended: contended == 1,
                has_more: more == 1,
            }));
        }
        [0, left, position, ours] => (left, position, ours, 1, None),
        [0, left, position, ours, is_next, stamp] => (left, position, ours, is_next, Some(stamp)),
        _ => return None,
    };
    Some(AcquireOutcome::Busy(Busy {
        expiry: match left {
            -1 => Expiry::Never,
            -2 => Expiry::Unknown,
            millis => Expiry::In(Duration::from_millis(u64::try_from(millis).ok()?)),
        },
        position: u64::try_from(position).ok().and_then(NonZeroU64::new),
        wake_up: if ours == 1 {
            WakeUpMode::Push
        } else {
            WakeUpMode::Poll
        },
        is_next: is_next == 1,
        stamp: stamp.map(u64::try_from).transpose().ok()?,
        holder,
    }))
}

/// Returns the label of a holder, if it is one of ours.
fn label(holder: &Value) -> Option<Arc<str>> {
    let label = Shown(reply::text(holder)?).to_string();
    (!label.is_empty()).then(|| label.into())
}

/// Accepts at least one token, and none beyond what an honest server can reach, since every later token would have to be
/// larger.
pub(crate) fn read_fencing(first: i64, count: i64) -> Option<FencingBlock> {
    let (first, count) = (u64::try_from(first).ok()?, u32::try_from(count).ok()?);
    (0 < first && first < LARGEST_TOKEN && count > 0).then(|| FencingBlock::new(first, count))
}

pub(crate) fn read_renewed(reply: &Value) -> Result<Renewed, Failure> {
    let numbers = match reply {
        Value::Int(number) => Some(vec![*number]),
        Value::ServerError(error) => return Err(answered(error)),
        reply => reply::numbers(reply),
    };
    let (tokens, contended) = match numbers.as_deref() {
        Some([0]) => return Ok(Renewed::NotOurs),
        Some([1]) => (Some(FencingBlock::EMPTY), 0),
        Some([1, contended]) => (Some(FencingBlock::EMPTY), *contended),
        Some([1, contended, first, count]) => (read_fencing(*first, *count), *contended),
        _ => (None, 0),
    };
    Ok(Renewed::Extended {
        tokens: tokens.ok_or_else(|| errors::nonsense("a renewal"))?,
        contended: match contended {
            0 => Contended::NoneWaiting,
            2 => Contended::OthersWaiting,
            _ => Contended::OthersQueued,
        },
    })
}

/// The value of a key, if it exists, and how long it lasts (`None`: without an expiry).
pub(crate) type SeenLock = Option<(String, Option<Duration>)>;

/// The reply of `inspect.lua`.
struct Inspected {
    holder: String,
    remaining: Option<Duration>,
    waiting: usize,
    holders: usize,
    leases: Words,
    queue: Words,
    result: Option<Duration>,
}

type Words = Vec<Vec<u8>>;

impl Inspected {
    fn read(reply: &Value) -> Option<Self> {
        let words: (Vec<u8>, i64, usize, usize, Words, Words, i64) =
            redis::from_redis_value_ref(reply).ok()?;
        let (holder, remaining, waiting, holders, leases, queue, result) = words;
        Some(Self {
            holder: String::from_utf8_lossy(&holder).into_owned(),
            remaining: time_left(remaining),
            waiting,
            holders,
            leases,
            queue,
            result: time_left(result),
        })
    }
}

pub(crate) fn read_sighting(reply: &Value) -> Result<Option<Sighting>, Failure> {
    if reply.as_sequence().is_some_and(<[Value]>::is_empty) {
        return Ok(None);
    }
    let found = Inspected::read(reply).ok_or_else(|| errors::nonsense("an inspection"))?;
    if let (true, Some(kept_for)) = (found.holder.is_empty(), found.result) {
        return Ok(Some(Sighting::of_result(kept_for)));
    }
    let seen = Sighting {
        queue: found.queue.iter().map(|words| waiter(words)).collect(),
        result_kept_for: found.result,
        ..sighting_of(&found.holder, found.remaining, found.waiting)
    };
    let mode = match found.holder.get(..6) {
        Some("lc1+s:") => LockMode::Shared,
        Some("lc1+p:") => LockMode::Permits,
        _ => return Ok(Some(seen)),
    };
    Ok(Some(Sighting {
        mode,
        holders: found.holders,
        // Empty if the set of holders was evicted.
        leases: found.leases.iter().map(|words| lease(words)).collect(),
        ..seen
    }))
}

/// Reads a reply to PTTL, where a negative number means a missing expiry.
pub(crate) fn time_left(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

fn process(label: &str) -> Holder {
    Holder::labelled(Some(label).filter(|label| !label.is_empty()))
}

fn lease(words: &[u8]) -> LeaseInfo {
    let words = String::from_utf8_lossy(words);
    let mut words = words.splitn(3, ' ');
    let mut next = || words.next().unwrap_or_default();
    LeaseInfo {
        remaining: next().parse().ok().map(Duration::from_millis),
        permit: next().parse().ok(),
        process: process(next()),
    }
}

fn waiter(words: &[u8]) -> Waiter {
    let words = String::from_utf8_lossy(words);
    let (kind, label) = words.split_once(' ').unwrap_or((&words, ""));
    Waiter {
        process: process(label),
        mode: match kind {
            "x" | "o" => LockMode::Exclusive,
            "s" => LockMode::Shared,
            _ => LockMode::Permits,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::transport::reply::error;

    #[test]
    fn a_value_of_the_wrong_form_is_not_a_reply() {
        let odd = [
            Value::Nil,
            Value::Int(7),
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![Value::Int(1), Value::Int(5)]),
            Value::Array(vec![Value::Int(1), Value::Int(-1), Value::Int(1)]),
            Value::Array(vec![Value::Int(1), Value::Int(5), Value::Int(0)]),
            Value::Array(vec![Value::Int(2), Value::Int(5), Value::Int(1)]),
            Value::Array(vec![Value::Int(1), Value::Int(1 << 53), Value::Int(1)]),
            Value::Array(vec![Value::Int(1), Value::Nil, Value::Int(1)]),
            Value::Array(vec![
                Value::Int(0),
                Value::Int(-3),
                Value::Int(0),
                Value::Int(1),
            ]),
        ];
        for reply in odd {
            assert!(read_outcome(&reply).is_none(), "{reply:?}");
        }
        assert!(read_renewed(&Value::SimpleString("OK".to_owned())).is_err());
        assert!(read_sighting(&Value::Array(vec![Value::Int(1)])).is_err());
    }

    #[test]
    fn an_error_of_a_script_says_what_is_wrong_with_the_lock() {
        let wrapped = "ERR Error running script (call to f_0123): @user_script:17: WRONGTYPE Operation against a key";
        let failure = answered(&error(wrapped));
        assert!(matches!(failure, Failure::Invalid(reason) if *reason == *NO_LOCK));
        let no_token = format!("ERR {OUT_OF_BOUNDS}: the clock is behind");
        assert!(answered(&error(&no_token)).is_definite());
        let of_keys =
            "NOPERM this user has no permissions to access one of the keys used as arguments";
        let failure = answered(&error(of_keys)).text();
        assert!(failure.contains("~__lock_core__:*"), "{failure}");
    }
}
