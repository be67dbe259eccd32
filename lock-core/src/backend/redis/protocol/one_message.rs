//! Requests that take one message and one reply, where a connection is ready. Their futures may be polled anywhere. A release that finds
//! a request waiting takes a second message. So does an acquire in a message of several requests, if a queue exists.

use redis::{Pipeline, Value};

use crate::{
    backend::{
        Acquire, Answered, Release, Reply,
        redis::{
            protocol::{
                calls::set_if_free,
                gathered,
                redis_store::RedisStore,
                replies::{
                    note_answered, of_plain, of_reply, of_value, read_acquired, read_plain,
                    read_released,
                },
                scripts::{ACQUIRE, Call, RELEASE, RELEASE_UNCONTENDED, is_unknown},
            },
            topology::{key_location::KeyLocation, sharded_subscription::GrantDelivery},
            transport::{
                capabilities::Capabilities,
                command::{Arg::Written, command},
                requests::Ready,
            },
        },
    },
    engine::reply::{AcquireOutcome, QueueMode, ReleaseOutcome},
    failure::Failure,
    mode::Mode,
};

/// Where and how a request leaves.
struct Way {
    location: KeyLocation,
    ready: Ready,
    form: SentAs,
}

enum SentAs {
    /// By commands that look at nothing but the lock and the queue.
    Plain,
    /// By the script of all requests of its kind.
    Script,
}

/// Takes a key: at once if a connection is ready and one reply is enough, else by the steps of `on_the_manager.rs`. A second try, after an
/// error or without a reply, goes by those steps, too.
pub(crate) fn acquire(store: &RedisStore, request: Acquire) -> Reply<Answered<AcquireOutcome>> {
    let store = store.clone();
    Box::pin(async move {
        let mut acquired = Ok(None);
        if let Some(way) = store.way_to_acquire(&request) {
            acquired = match way.form {
                SentAs::Script => take_by_script(&store, &way, &request).await,
                SentAs::Plain => take_plainly(&way, &request).await,
            };
            way.ready.expect_its_form(&acquired);
            // Also after an error reply: the reply to a script says more. A replica says whether it has a primary.
            let is_busy =
                !matches!(&acquired, Ok(Some(acquired)) if acquired.outcome.found_it_free());
            store.note_others(&request.owner.key, is_busy);
        }
        let may_have_it = match acquired {
            Ok(Some(acquired)) => return Ok(acquired),
            Ok(None) => false,
            // A retry is safe.
            Err(failure) => !failure.is_definite(),
        };
        let owner = request.owner.clone();
        let left_on = owner.in_flight.only_connection();
        let reply = store.take_on_the_manager(request).await;
        if !may_have_it {
            return reply;
        }
        // The refusal of the second request says nothing about the first one, which may have taken the key.
        reply.map_err(|failure| {
            if let (true, Some(left_on)) = (owner.in_flight.is_empty(), left_on) {
                owner.in_flight.note_sent_on(left_on);
            }
            failure.executed_in_part()
        })
    })
}

/// Makes one try of a release.
pub(crate) fn release(store: &RedisStore, request: Release) -> Reply<Answered<ReleaseOutcome>> {
    let store = store.clone();
    Box::pin(async move {
        let mut released = Ok(None);
        if let Some(way) = store.way_to_release(&request) {
            if !matches!(way.form, SentAs::Script) {
                released = release_alone(&way, &request).await;
                way.ready.expect_its_form(&released);
                if let Ok(found) = &released {
                    let outcome = found.as_ref().map(|found| &found.outcome);
                    let is_free = matches!(outcome, Some(ReleaseOutcome::Released));
                    store.note_others(&request.owner.key, !is_free);
                }
            }
            if matches!(released, Ok(None)) {
                released = release_by_script(&way, &request).await;
                way.ready.expect_its_form(&released);
            }
        }
        match released {
            Ok(Some(released)) => Ok(released),
            Err(failure) if !failure.is_definite() => Err(failure),
            // For example, the server does not know the script yet.
            Ok(None) | Err(_) => store.let_go_on_the_manager(request).await,
        }
    })
}

impl RedisStore {
    /// `None`: no connection is ready, or one reply is not enough.
    ///
    /// A key for which no contention is expected is taken by plain commands, whatever the server is and whatever its address. Else the
    /// script is sent, which may join the queue.
    fn way_to_acquire(&self, request: &Acquire) -> Option<Way> {
        let location = self.0.servers.location(&request.owner.full_key);
        let server = &location.server;
        // A lock that replicas must acknowledge is taken on a connection of its own, so none is made for the caller's runtime.
        if server.replica_acks.is_some() {
            return None;
        }
        let behind = request.owner.in_flight.only_connection().or(request.after);
        let ready = server.ready(behind, &self.0.executor)?;
        let is_plain = matches!(request.owner.mode, Mode::Exclusive)
            && !matches!(request.queue_mode, QueueMode::CheckPosition(_))
            && !self.expects_others(&request.owner.key);
        let form = match ready.current.capabilities? {
            Capabilities::Scripts if !is_plain => SentAs::Script,
            // Without scripts, a key that may be busy takes more than one request.
            Capabilities::Commands if !is_plain => return None,
            Capabilities::Scripts | Capabilities::Commands => SentAs::Plain,
        };
        Some(Way {
            location,
            ready,
            form,
        })
    }

    /// `None`: as with an acquire.
    fn way_to_release(&self, request: &Release) -> Option<Way> {
        let location = self.0.servers.location(&request.owner.full_key);
        let server = &location.server;
        let ready = server.ready_to_release(request, &self.0.executor)?;
        if !matches!(ready.current.capabilities, Some(Capabilities::Scripts)) {
            return None;
        }
        let is_plain = request.owner.mode.is_alone()
            && request.result.is_none()
            && request.keep.is_none()
            && !request.may_be_queued
            && request.owner.released_on.is_empty()
            && request.owner.in_flight.is_empty()
            && server.replica_acks.is_none()
            && !self.0.is_one_of_several
            && !self.expects_others(&request.owner.key);
        let form = match is_plain {
            false => SentAs::Script,
            true => SentAs::Plain,
        };
        Some(Way {
            location,
            ready,
            form,
        })
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
    way: &Way,
    request: &Acquire,
) -> Result<Option<Answered<AcquireOutcome>>, Failure> {
    let (location, ready) = (&way.location, &way.ready);
    let (in_flight, known) = (&request.owner.in_flight, request.known_fencing);
    let within = ready.reconnecting.acquire_within(request.ttl);
    let reply = if ready.current.capabilities == Some(Capabilities::Scripts) {
        Box::pin(gathered::acquire(location, ready, request, within)).await?
    } else {
        let mut commands = Pipeline::with_capacity(2);
        commands.add_command(command(&[&set_if_free(&*request.owner, request.ttl)]));
        commands.add_command(location.names.next_id.clone());
        of_plain(&mut ready.several(&commands, in_flight, within).await?)?
    };
    read_plain(reply, ready.id(), known, in_flight)
}

/// Takes a key by the script. Without a subscription to grants, the script adds no entry to the queue.
async fn take_by_script(
    store: &RedisStore,
    way: &Way,
    request: &Acquire,
) -> Result<Option<Answered<AcquireOutcome>>, Failure> {
    let (location, ready) = (&way.location, &way.ready);
    let delivery = location.delivery();
    let queue_mode = delivery.queue_mode(request.queue_mode);
    let (arguments, count) = location.acquire_arguments(request, queue_mode, store.0.timing.mark());
    let script = ACQUIRE.call(Call {
        keys: &location.keys(&request.owner.full_key)[..KeyLocation::declared(request.owner.mode)],
        arguments: &arguments[..count],
    });
    let in_flight = &request.owner.in_flight;
    let within = ready.reconnecting.acquire_within(request.ttl);
    let reply: Value = Box::pin(ready.one(script, in_flight, within)).await?;
    let reply = of_reply(reply, ready.id(), in_flight)?;
    let acquired = read_acquired(&reply, ready.id(), queue_mode)?;
    // An entry in the queue needs a subscription first.
    let is_first_step = delivery == GrantDelivery::NotSubscribedYet
        && request.queue_mode != QueueMode::DoNotQueue
        && matches!(acquired.outcome, AcquireOutcome::Busy(_));
    if is_first_step {
        note_answered(in_flight, ready.id());
        return Ok(None);
    }
    Ok(Some(acquired))
}

/// Releases a lock that is held alone, and for which no request is expected to wait. `None`: one waits, or the lock is not held any
/// more. Then the script of all releases is to do it.
async fn release_alone(
    way: &Way,
    request: &Release,
) -> Result<Option<Answered<ReleaseOutcome>>, Failure> {
    let (location, ready) = (&way.location, &way.ready);
    let mut reply = Box::pin(gathered::release(location, ready, request)).await?;
    match reply {
        Value::Int(0) => return Ok(None),
        Value::Int(1) => return read_released(&reply, ready.id()).map(Some),
        _ => {}
    }
    let [lock, _, queue, ..] = location.keys(&request.owner.full_key);
    let call = Call {
        keys: &[lock, queue],
        arguments: &[Written(&request.owner.token)],
    };
    let (in_flight, within) = (
        &request.owner.released_on,
        ready.reconnecting.reply_within(),
    );
    // Perhaps another key of the message caused the error.
    if !is_unknown(&reply) {
        let by_hash = RELEASE_UNCONTENDED.call(call);
        reply = ready.one(by_hash, in_flight, within).await?;
    }
    if is_unknown(&reply) {
        // The next message finds the script, too.
        let by_text = RELEASE_UNCONTENDED.call_by_text(call);
        reply = ready.one(by_text, in_flight, within).await?;
    }
    if let Value::Array(_) = reply {
        return Ok(None);
    }
    read_released(&of_value(reply)?, ready.id()).map(Some)
}

/// Releases a lock by the script of all releases, which serves the queue.
async fn release_by_script(
    way: &Way,
    request: &Release,
) -> Result<Option<Answered<ReleaseOutcome>>, Failure> {
    let (location, ready) = (&way.location, &way.ready);
    let (arguments, count) = location.release_arguments(request);
    let script = RELEASE.call(Call {
        keys: &location.keys(&request.owner.full_key)[..KeyLocation::declared(request.owner.mode)],
        arguments: &arguments[..count],
    });
    let within = ready.reconnecting.reply_within();
    let reply = Box::pin(ready.one(script, &request.owner.released_on, within)).await?;
    read_released(&of_value(reply)?, ready.id()).map(Some)
}
