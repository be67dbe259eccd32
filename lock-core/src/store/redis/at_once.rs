//! Requests that take one message and one reply, where a connection is ready. Their futures may be polled anywhere.

use redis::Value;

use crate::mode::Mode;
use crate::store::{
    Acquire, AcquireOutcome, Acquired, Failure, QueueMode, Release, Released,
    fencing_counter::LastToken,
    in_flight::{ConnectionId, InFlight},
    redis::{
        RedisStore, acquire_script,
        connection::{
            errors,
            wire::command::{Arg::Text, Outgoing, command, pipeline},
        },
        release_script,
        scripts::{
            Call,
            replies::{read_acquired, read_plain, read_released},
        },
        topology::key_location::{GrantDelivery, KeyLocation},
        without_scripts::set_if_free,
    },
};

/// The queue mode that the caller wants where there are grants, and the one that is possible now.
fn queue_modes(delivery: GrantDelivery, wanted: QueueMode) -> (QueueMode, QueueMode) {
    match delivery {
        GrantDelivery::Pushed => (wanted, wanted),
        GrantDelivery::NotSubscribedYet => (wanted, QueueMode::DoNotQueue),
        GrantDelivery::Unsupported => (QueueMode::DoNotQueue, QueueMode::DoNotQueue),
    }
}

/// Fails if the lock is busy: an entry in the queue needs a subscription first.
fn require_no_entry(
    acquired: &Acquired,
    id: ConnectionId,
    in_flight: &InFlight,
) -> Result<(), Failure> {
    if matches!(acquired.outcome, AcquireOutcome::Busy(_)) {
        errors::note_answered(in_flight, id);
        return Err(Failure::not_now("another holder has the lock"));
    }
    Ok(())
}

impl RedisStore {
    /// Sends an acquire at once, if one reply is enough for it and a connection is ready. The future may be polled anywhere.
    pub(super) fn acquire_at_once(
        &self,
        request: &Acquire,
    ) -> Option<impl Future<Output = Result<Acquired, Failure>> + Send + use<>> {
        let location = self.0.servers.location(&request.full_key);
        let server = location.server.clone();
        let contention = self.0.contention.clone();
        let is_exclusive = request.entry.mode == Mode::Exclusive;
        let plain = is_exclusive
            && !matches!(request.queue_mode, QueueMode::CheckPosition(_))
            && !contention.is_expected(&request.full_key);
        let counts = request.tokens == 1 && is_exclusive;
        let last = server.fencing_counter.last().filter(|_| counts);
        if server.replica_acks.is_some() {
            return None;
        }
        let (wanted, queue_mode) = queue_modes(location.delivery(), request.queue_mode);
        let make = |id, now| {
            let counted_from = last.and_then(|last| last.floor(id, now));
            if plain && counted_from.is_some() {
                return plain_acquire(&location, request);
            }
            let call = Call {
                keys: &location.keys(&request.full_key)
                    [..KeyLocation::declared(request.entry.mode)],
                arguments: &location.acquire_arguments(request, queue_mode, counted_from),
            };
            acquire_script(request).call(call)
        };
        let floor = last.map_or(0, LastToken::token).max(request.known_fencing);
        let full_key = request.full_key.clone();
        let (in_flight, noted) = (request.in_flight.clone(), server.clone());
        let read = move |values: Vec<Value>, id, sent| {
            let acquired = match <[Value; 3]>::try_from(values) {
                Ok(answers) => read_plain(answers, id, floor, &in_flight),
                Err(values) => {
                    let answer = values.into_iter().next().unwrap_or(Value::Nil);
                    errors::of_answer(answer, id, &in_flight).and_then(|answer| {
                        let acquired = read_acquired(&answer, id, queue_mode)?;
                        if queue_mode != wanted {
                            require_no_entry(&acquired, id, &in_flight)?;
                        }
                        if let (AcquireOutcome::Granted(grant), Value::Array(_)) =
                            (&acquired.outcome, &answer)
                            && is_exclusive
                        {
                            noted.fencing_counter.note(id, sent, grant.tokens.last());
                        }
                        Ok(acquired)
                    })
                }
            };
            let alone = matches!(&acquired, Ok(acquired) if matches!(acquired.outcome, AcquireOutcome::Granted(_)));
            contention.note(&full_key, !alone);
            acquired
        };
        let behind = request.in_flight.only_connection().or(request.behind);
        let connection = server.requesting(behind, &self.0.executor);
        let within = connection.acquire_within(request.ttl);
        connection.send_at_once(&request.in_flight, within, &make, read)
    }

    /// Sends a release at once, if a connection is ready. The future may be polled anywhere.
    pub(super) fn release_at_once(
        &self,
        request: &Release,
        is_plain: bool,
    ) -> Option<impl Future<Output = Result<Released, Failure>> + Send + use<>> {
        let location = self.0.servers.location(&request.full_key);
        let make = |_, _| {
            let call = Call {
                keys: &location.keys(&request.full_key)
                    [..KeyLocation::declared(request.entry.mode)],
                arguments: &location.release_arguments(request, is_plain),
            };
            release_script(request).call(call)
        };
        let read = |values: Vec<Value>, id, _| {
            let value = values.into_iter().next().unwrap_or(Value::Nil);
            read_released(&errors::of_value(value)?, id)
        };
        let server = &location.server;
        let connection = if request.acquire_in_flight.is_empty() && server.replica_acks.is_none() {
            let behind = request.in_flight.only_connection();
            server.requesting(behind, &self.0.executor)
        } else {
            server.releasing(&request.acquire_in_flight)
        };
        let within = connection.reply_within();
        connection.send_at_once(&request.in_flight, within, &make, read)
    }
}

/// Takes a key for which no contention is expected. The lock comes first, and then its fencing token: another order could hand
/// out tokens that decrease. The length of the queue is read last: no acquire may overtake a waiter.
fn plain_acquire(location: &KeyLocation, request: &Acquire) -> Outgoing {
    let [_, fence, queue, ..] = location.keys(&request.full_key);
    pipeline([
        command(&[&set_if_free(request)]),
        command(&[&[Text("INCR"), fence]]),
        command(&[&[Text("ZCARD"), queue]]),
    ])
}
