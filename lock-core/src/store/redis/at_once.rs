//! Requests that take one message and one reply, where a connection is ready. Their futures may be polled anywhere.

use redis::Value;

use crate::mode::Mode;
use crate::store::{
    Acquire, AcquireOutcome, Acquired, Failure, QueueMode, Release, Released,
    in_flight::{ConnectionId, InFlight},
    redis::{
        RedisStore, acquire_script,
        connection::{
            capabilities::Capabilities,
            errors,
            wire::command::{Arg::Text, Outgoing, command, pipeline},
        },
        release_script,
        scripts::{
            Call,
            replies::{read_acquired, read_plain, read_released},
        },
        topology::key_location::{GrantDelivery, KeyLocation},
        without_scripts::{next_id, set_if_free},
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
    ///
    /// A key for which no contention is expected is taken by plain commands, whatever the server is and whatever its address. Else the
    /// script is sent, which may join the queue.
    pub(super) fn acquire_at_once(
        &self,
        request: &Acquire,
    ) -> Option<impl Future<Output = Result<Acquired, Failure>> + Send + use<>> {
        let location = self.0.servers.location(&request.full_key);
        let server = location.server.clone();
        if server.replica_acks.is_some() {
            return None;
        }
        let contention = self.0.contention.clone();
        let is_plain = request.entry.mode == Mode::Exclusive
            && !matches!(request.queue_mode, QueueMode::CheckPosition(_))
            && !contention.is_expected(&request.full_key);
        let (wanted, queue_mode) = queue_modes(location.delivery(), request.queue_mode);
        let make = |capabilities| match capabilities {
            _ if is_plain => Some(plain_acquire(&location, request, capabilities)),
            Capabilities::Scripts => {
                let call = Call {
                    keys: &location.keys(&request.full_key)
                        [..KeyLocation::declared(request.entry.mode)],
                    arguments: &location.acquire_arguments(request, queue_mode),
                };
                Some(acquire_script(request).call(call))
            }
            // A key that may be busy takes more than one request.
            Capabilities::Commands(_) => None,
        };
        let (full_key, known) = (request.full_key.clone(), request.known_fencing);
        let in_flight = request.in_flight.clone();
        let read = move |values: Vec<Value>, id| {
            let acquired = if is_plain {
                read_plain(values, id, known, &in_flight)
            } else {
                let answer = values.into_iter().next().unwrap_or(Value::Nil);
                errors::of_answer(answer, id, &in_flight).and_then(|answer| {
                    let acquired = read_acquired(&answer, id, queue_mode)?;
                    if queue_mode != wanted {
                        require_no_entry(&acquired, id, &in_flight)?;
                    }
                    Ok(acquired)
                })
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
    ) -> Option<impl Future<Output = Result<Released, Failure>> + Send + use<>> {
        let location = self.0.servers.location(&request.full_key);
        let make = |capabilities| {
            let call = Call {
                keys: &location.keys(&request.full_key)
                    [..KeyLocation::declared(request.entry.mode)],
                arguments: &location.release_arguments(request),
            };
            // Without scripts, a release takes more than one request.
            (capabilities == Capabilities::Scripts).then(|| release_script(request).call(call))
        };
        let read = |values: Vec<Value>, id| {
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
/// out tokens that decrease. The queue is looked at last: no acquire may overtake a waiter. Without scripts there is no queue.
///
/// Other clients' commands may be executed in between. If the lease ends meanwhile, and another client takes the lock, the token is
/// larger than that of the other client. But then the reply is later than its lease, and such a reply grants nothing.
///
/// These commands are never sent behind `ASKING`, which would make a second clock at the node that is receiving the slot.
fn plain_acquire(
    location: &KeyLocation,
    request: &Acquire,
    capabilities: Capabilities,
) -> Outgoing {
    let [_, clock, queue, ..] = location.keys(&request.full_key);
    let commands = [
        command(&[&set_if_free(request)]),
        command(&[&next_id(clock)]),
        command(&[&[Text("EXISTS"), queue]]),
    ];
    let count = match capabilities {
        Capabilities::Scripts => 3,
        Capabilities::Commands(_) => 2,
    };
    pipeline(commands.into_iter().take(count))
}
