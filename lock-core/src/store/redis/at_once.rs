//! Requests that take one message and one reply, where a connection is ready. Their futures may be polled anywhere. A release that finds
//! a request waiting takes a second message.

use redis::{Pipeline, Value};

use crate::mode::Mode;
use crate::store::{
    Acquire, AcquireOutcome, Acquired, Failure, QueueMode, Release, ReleaseOutcome, Released,
    redis::{
        connection::{
            capabilities::Capabilities,
            errors,
            exchange::Ready,
            wire::command::{
                Arg::{Text, Token},
                command,
            },
        },
        gathered, native_release,
        redis_store::RedisStore,
        scripts::{
            ACQUIRE, Call, RELEASE, RELEASE_UNCONTENDED, is_unknown,
            replies::{of_plain, read_acquired, read_plain, read_released},
        },
        topology::{grant_delivery::GrantDelivery, key_location::KeyLocation},
        without_scripts::set_if_free,
    },
};

impl RedisStore {
    /// Takes a key, if a connection is ready and one reply is enough. `None`: no request is pending, and the steps of `at_location.rs`
    /// are needed.
    ///
    /// A key for which no contention is expected is taken by plain commands, whatever the server is and whatever its address. Else the
    /// script is sent, which may join the queue.
    pub(super) async fn acquire_at_once(
        &self,
        request: &Acquire,
    ) -> Result<Option<Acquired>, Failure> {
        let location = self.0.servers.location(&request.owner.full_key);
        let server = &location.server;
        // Such a lock is taken on a connection of its own, so none is made for the caller's runtime.
        if server.replica_acks.is_some() {
            return Ok(None);
        }
        let behind = request.owner.in_flight.only_connection().or(request.behind);
        let Some(ready) = server.ready(behind, &self.0.executor) else {
            return Ok(None);
        };
        let contention = self.0.contention.of(&request.owner.key);
        let is_plain = request.owner.mode == Mode::Exclusive
            && !matches!(request.queue_mode, QueueMode::CheckPosition(_))
            && !contention.is_expected();
        let acquired = match ready.current.capabilities {
            Some(by) if is_plain => take_plainly(&location, &ready, request, by).await,
            Some(Capabilities::Scripts) => {
                Box::pin(take_by_script(&location, &ready, request)).await
            }
            // Without scripts, a key that may be busy takes more than one request.
            Some(Capabilities::Commands) | None => return Ok(None),
        };
        let outcome = acquired.as_ref().ok().and_then(Option::as_ref);
        let outcome = outcome.map(|acquired| &acquired.outcome);
        // Also after an error reply: the reply to a script says more. A replica says whether it has a primary.
        contention.note(!matches!(
            outcome,
            Some(AcquireOutcome::Granted(_) | AcquireOutcome::Done(_))
        ));
        acquired
    }

    /// Releases a key, if a connection is ready and one reply is enough. `None`: as with an acquire.
    pub(super) async fn release_at_once(
        &self,
        request: &Release,
    ) -> Result<Option<Released>, Failure> {
        let location = self.0.servers.location(&request.owner.full_key);
        let ready = location.server.ready_to_release(request, &self.0.executor);
        let Some(ready) = ready else {
            return Ok(None);
        };
        if ready.current.capabilities != Some(Capabilities::Scripts) {
            return Ok(None);
        }
        let contention = self.0.contention.of(&request.owner.key);
        if !contention.is_expected() && self.is_released_alone(&location, request) {
            let released = release_alone(&location, &ready, request).await?;
            let outcome = released.as_ref().map(|released| released.outcome);
            contention.note(outcome != Some(ReleaseOutcome::Released));
            if released.is_some() {
                return Ok(released);
            }
        }
        let (arguments, count) = location.release_arguments(request);
        let script = RELEASE.call(Call {
            keys: &location.keys(&request.owner.full_key)
                [..KeyLocation::declared(request.owner.mode)],
            arguments: &arguments[..count],
        });
        let within = ready.reconnecting.reply_within();
        let reply = Box::pin(ready.one(script, request.in_flight(), within)).await?;
        read_released(&errors::of_value(reply)?, ready.id()).map(Some)
    }

    /// Whether the lock may be released by a request that looks at nothing but the lock and the queue.
    fn is_released_alone(&self, location: &KeyLocation, request: &Release) -> bool {
        native_release::suffices(request)
            && location.server.replica_acks.is_none()
            && !self.0.is_one_of_several
    }
}

/// Takes a key for which no contention is expected. The lock comes first, and then its fencing token: another order could hand
/// out tokens that decrease. The queue is looked at last: no acquire may overtake a waiter. Without scripts there is no queue.
///
/// Other clients' commands may be executed in between. If the lease ends meanwhile, and another client takes the lock, the token is
/// larger than that of the other client. But then the reply is later than its lease, and such a reply grants nothing.
///
/// These commands are never sent behind `ASKING`, which would make a second clock at the node that is receiving the slot.
async fn take_plainly(
    location: &KeyLocation,
    ready: &Ready,
    request: &Acquire,
    by: Capabilities,
) -> Result<Option<Acquired>, Failure> {
    let (in_flight, known) = (&request.owner.in_flight, request.known_fencing);
    let within = ready.reconnecting.acquire_within(request.ttl);
    if by == Capabilities::Scripts && gathered::is_preferred(location, ready) {
        let reply = gathered::acquire(location, ready, request, within).await?;
        return read_plain(reply, ready.id(), known, in_flight);
    }
    let mut commands = Pipeline::with_capacity(3);
    commands.add_command(command(&[&set_if_free(&request.owner, request.ttl)]));
    commands.add_command(location.names.next_id.clone());
    if by == Capabilities::Scripts {
        let [_, _, queue, ..] = location.keys(&request.owner.full_key);
        commands.add_command(command(&[&[Text("EXISTS"), queue]]));
    }
    let replies = Box::pin(ready.several(&commands, in_flight, within)).await?;
    let [set, behind @ ..] = &replies[..] else {
        return Err(errors::nonsense("an acquire"));
    };
    let reply = of_plain(set.clone(), behind.first(), behind.get(1));
    read_plain(reply, ready.id(), known, in_flight)
}

/// Releases a lock that is held alone, and for which no request is expected to wait. `None`: the script of all releases is to do it.
async fn release_alone(
    location: &KeyLocation,
    ready: &Ready,
    request: &Release,
) -> Result<Option<Released>, Failure> {
    let mut is_forgotten = false;
    if gathered::is_preferred(location, ready) {
        let reply = gathered::release(location, ready, request).await?;
        match reply {
            Value::Int(0) => return Ok(None),
            Value::Int(1) => return read_released(&reply, ready.id()).map(Some),
            // Perhaps another key of the message caused the error.
            error => is_forgotten = is_unknown(&error),
        }
    }
    match ready.current.delete_if() {
        Some(by) if !is_forgotten => {
            Box::pin(native_release::release(by, location, ready, request)).await
        }
        // By its text, if the server has forgotten the script: so the next message finds it.
        _ => Box::pin(release_uncontended(location, ready, request)).await,
    }
}

/// Releases a lock for which no request is expected to wait. `None`: one waits, or the lock is not held any more. Then the script of
/// all releases is to do it.
async fn release_uncontended(
    location: &KeyLocation,
    ready: &Ready,
    request: &Release,
) -> Result<Option<Released>, Failure> {
    let [lock, _, queue, ..] = location.keys(&request.owner.full_key);
    let call = Call {
        keys: &[lock, queue],
        arguments: &[Token(&request.owner.token)],
    };
    let (in_flight, within) = (request.in_flight(), ready.reconnecting.reply_within());
    let by_hash = RELEASE_UNCONTENDED.call(call);
    let mut reply = ready.one(by_hash, in_flight, within).await?;
    if is_unknown(&reply) {
        let by_text = RELEASE_UNCONTENDED.call_by_text(call);
        reply = ready.one(by_text, in_flight, within).await?;
    }
    match errors::of_value(reply)? {
        Value::Array(_) => Ok(None),
        reply => read_released(&reply, ready.id()).map(Some),
    }
}

/// Takes a key by the script. Without a subscription to grants, the script adds no entry to the queue.
async fn take_by_script(
    location: &KeyLocation,
    ready: &Ready,
    request: &Acquire,
) -> Result<Option<Acquired>, Failure> {
    let delivery = location.delivery();
    let queue_mode = match delivery {
        GrantDelivery::Pushed => request.queue_mode,
        GrantDelivery::NotSubscribedYet | GrantDelivery::Unsupported => QueueMode::DoNotQueue,
    };
    let script = ACQUIRE.call(Call {
        keys: &location.keys(&request.owner.full_key)[..KeyLocation::declared(request.owner.mode)],
        arguments: &location.acquire_arguments(request, queue_mode),
    });
    let in_flight = &request.owner.in_flight;
    let within = ready.reconnecting.acquire_within(request.ttl);
    let reply: Value = ready.one(script, in_flight, within).await?;
    let reply = errors::of_reply(reply, ready.id(), in_flight)?;
    let acquired = read_acquired(&reply, ready.id(), queue_mode)?;
    // An entry in the queue needs a subscription first.
    let is_first_step = delivery == GrantDelivery::NotSubscribedYet
        && request.queue_mode != QueueMode::DoNotQueue
        && matches!(acquired.outcome, AcquireOutcome::Busy(_));
    if is_first_step {
        errors::note_answered(in_flight, ready.id());
        return Ok(None);
    }
    Ok(Some(acquired))
}
