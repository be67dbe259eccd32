//! The acquire: one function for every kind of lock, server and connection.
//!
//! It is polled by the task that wants the lock, on any thread. Steps that need timers or a new connection run on the manager's thread
//! and are awaited: connecting, subscribing, waiting for replicas, following a redirect.
//!
//! # Cancel safety
//!
//! Each request notes its connection with the owner before the first byte leaves. If this future is dropped, its caller
//! releases the owner token on that connection, or on later ones until the lease must have ended. If a reply is late or never
//! arrives, the result is an indefinite failure, with the same consequence. If this process is stopped in between, the lease
//! still counts from before the request was sent.

use redis::Value;

use crate::{
    backend::{
        Acquire, Answered, Reply,
        on_executor::on_the_manager,
        redis::{
            protocol::{
                calls::set_if_free,
                messages,
                programs::{AcquireArguments, LockKeys, acquire_call},
                redis_store::{Acked, RedisStore},
                replies::{note_answered, of_plain, of_reply, read_acquired, read_plain},
                scripts::ACQUIRE,
            },
            topology::{
                key_location::KeyLocation, servers::MOST_HOPS, sharded_subscription::GrantDelivery,
            },
            transport::{
                capabilities::Capabilities, command::command, redirect::NodeRole, requests::Ready,
            },
        },
    },
    engine::reply::{AcquireOutcome, QueueMode},
    failure::Failure,
    mode::Mode,
};

/// Acquires a key, wherever it is.
///
/// After a failure on a connection that was ready, a second attempt uses the manager's connection and a script: the connection
/// may have been closed while it was idle, and the reply to a script contains more. A retry is safe, since the owner token
/// makes it idempotent.
pub(crate) fn acquire(
    store: &RedisStore,
    request: Acquire,
    acked: Acked,
) -> Reply<Answered<AcquireOutcome>> {
    let store = store.clone();
    Box::pin(async move {
        let owner = request.owner.clone();
        let mut location = store.0.servers.location(&owner.full_key);
        let (mut hops, mut first_try) = (0, None);
        // Bounded by the number of redirects, and one more attempt.
        loop {
            let is_retry = first_try.is_some();
            let connected = store.session_to_acquire(&location, &request, is_retry);
            let (failure, left_on) = match connected.await {
                Err(failure) => (failure, None),
                Ok((ready, was_ready)) => {
                    // After one lost reply, others may be lost, too.
                    let ready = match first_try {
                        Some(Some(_)) => ready.verifying(),
                        _ => ready,
                    };
                    let acquired = acquire_at(&store, &location, &ready, &request, acked, is_retry);
                    let acquired = acquired.await;
                    let is_free =
                        |acquired: &Answered<AcquireOutcome>| acquired.outcome.found_it_free();
                    store.note_others(&owner.key, !acquired.as_ref().is_ok_and(is_free));
                    match acquired {
                        Ok(acquired) => return Ok(acquired),
                        Err(failure) => (failure, was_ready.then(|| ready.id())),
                    }
                }
            };
            if hops < MOST_HOPS
                && let Some(next) = store.redirected(&location, &failure).await
            {
                location = next;
                hops += 1;
            } else if let (Some(left_on), false) = (left_on, is_retry) {
                first_try = Some((!failure.is_definite()).then_some(left_on));
            } else {
                // A refusal of the second attempt proves nothing about the first one, which may have acquired the key.
                return Err(match first_try.flatten() {
                    None => failure,
                    Some(connection) => {
                        if owner.in_flight.is_empty() {
                            owner.in_flight.note_sent_on(connection);
                        }
                        failure.executed_in_part()
                    }
                });
            }
        }
    })
}

impl RedisStore {
    /// Returns the connection for an acquire, and whether it was ready. If a release of the key is in flight, it is the
    /// connection of that release.
    async fn session_to_acquire(
        &self,
        location: &KeyLocation,
        request: &Acquire,
        is_retry: bool,
    ) -> Result<(Ready, bool), Failure> {
        let server = &location.server;
        // A lock that replicas must acknowledge is acquired on a separate connection, so none is made for the caller's runtime.
        if server.replica_acks.is_none() && !is_retry {
            let earlier = request.owner.in_flight.only_connection();
            if let Some(ready) = server.ready(earlier.or(request.after), &self.0.executor) {
                return Ok((ready, true));
            }
        }
        let ready = self.connect(server.holding().clone()).await?;
        Ok((ready, false))
    }
}

/// Acquires a key at its server, on one connection.
async fn acquire_at(
    store: &RedisStore,
    location: &KeyLocation,
    ready: &Ready,
    request: &Acquire,
    acked: Acked,
    is_retry: bool,
) -> Result<Answered<AcquireOutcome>, Failure> {
    let Capabilities {
        scripts: has_scripts,
        forwards_all,
    } = ready.capabilities()?;
    if !has_scripts && request.owner.mode != Mode::Exclusive {
        return Err(needs_scripts());
    }
    let mut acquired = None;
    let is_contended = is_retry || store.expects_others(&request.owner.key);
    if !is_contended && forwards_all && goes_plainly(location, request) {
        let plain = plainly(location, ready, request, has_scripts).await;
        ready.expect_its_form(&plain);
        acquired = plain?;
    }
    let acquired = match acquired {
        Some(acquired) => acquired,
        None if has_scripts => by_script(store, location, ready, request, is_contended).await?,
        None => {
            let (location, ready, request) = (location.clone(), ready.clone(), request.clone());
            let mark = store.0.timing.mark();
            let by_commands =
                async move { location.acquire_by_commands(&ready, &request, mark).await };
            on_the_manager(&store.0.executor, by_commands).await?
        }
    };
    if let (Some(_), AcquireOutcome::Granted(_), Acked::Must) =
        (&location.server.replica_acks, &acquired.outcome, acked)
    {
        let (server, order) = (location.server.clone(), acquired.order);
        let gathered = async move {
            match &server.replica_acks {
                Some(replica_acks) => replica_acks.gather(order).await,
                None => Ok(()),
            }
        };
        on_the_manager(&store.0.executor, gathered).await?;
    }
    Ok(acquired)
}

/// Returns `true` if plain commands can acquire the key if it is free. They cost the server half as much as the script, but cannot join
/// the queue, so if contention is expected, the script is sent at once.
///
/// They never follow `ASKING`, which would make a second clock at the node that is receiving the slot.
fn goes_plainly(location: &KeyLocation, request: &Acquire) -> bool {
    request.owner.mode == Mode::Exclusive
        && !matches!(request.queue_mode, QueueMode::CheckPosition(_))
        && location.server.replica_acks.is_none()
        && location.node_role == NodeRole::ServesSlot
}

/// Acquires a free key by plain commands. `None` means that it is busy.
///
/// The lock is taken first, and then its fencing token: another order could give decreasing tokens. The queue is checked last,
/// since no acquire may overtake a waiter. Without scripts there is no queue.
///
/// Other clients' commands may be executed in between. If the lease ends in the meantime, and another client takes the lock,
/// the token is larger than that of the other client. But then the reply arrives after the end of its lease, and such a
/// reply grants nothing.
async fn plainly(
    location: &KeyLocation,
    ready: &Ready,
    request: &Acquire,
    has_scripts: bool,
) -> Result<Option<Answered<AcquireOutcome>>, Failure> {
    let (in_flight, known) = (&request.owner.in_flight, request.known_fencing);
    let within = ready.reconnecting.acquire_within(request.ttl);
    let reply = if has_scripts {
        messages::acquire(location, ready, request, within).await?
    } else {
        let mut commands = command(&[&set_if_free(&*request.owner, request.ttl)]);
        commands.append(&location.names.next_id);
        of_plain(&mut ready.several(commands, in_flight, within).await?)?
    };
    read_plain(reply, ready.id(), known, in_flight)
}

/// Acquires a key with the script, or joins its queue, which requires a subscription to grants first.
async fn by_script(
    store: &RedisStore,
    location: &KeyLocation,
    ready: &Ready,
    request: &Acquire,
    is_contended: bool,
) -> Result<Answered<AcquireOutcome>, Failure> {
    let mut delivery = location.delivery();
    let wants_queue = request.queue_mode != QueueMode::DoNotQueue;
    if wants_queue && delivery == GrantDelivery::NotSubscribedYet {
        // A key without contention needs no subscription.
        if !is_contended {
            let acquired = run(store, location, ready, request, QueueMode::DoNotQueue).await?;
            if !matches!(acquired.outcome, AcquireOutcome::Busy(_)) {
                return Ok(acquired);
            }
            note_answered(&request.owner.in_flight, ready.id());
        }
        let (listening, within) = (location.clone(), store.within());
        let listened = async move { listening.listen(within).await };
        delivery = on_the_manager(&store.0.executor, listened).await?;
    }
    let queue_mode = delivery.queue_mode(request.queue_mode);
    run(store, location, ready, request, queue_mode).await
}

/// Runs the script.
async fn run(
    store: &RedisStore,
    location: &KeyLocation,
    ready: &Ready,
    request: &Acquire,
    queue_mode: QueueMode,
) -> Result<Answered<AcquireOutcome>, Failure> {
    let keys = LockKeys::new(location, &request.owner.full_key);
    let arguments =
        AcquireArguments::new(location, request, queue_mode, store.0.timing.mark()).words();
    let call = acquire_call(&keys, &arguments, request.owner.mode);
    let (in_flight, id) = (&request.owner.in_flight, ready.id());
    let within = ready.reconnecting.acquire_within(request.ttl);
    let reply: Value = Box::pin(location.call(ready, &ACQUIRE, call, in_flight, within)).await?;
    let acquired = read_acquired(&of_reply(reply, id, in_flight)?, id, queue_mode);
    ready.expect_its_form(&acquired);
    acquired
}

/// Returns the failure of a request that needs scripts, if scripts cannot be run.
fn needs_scripts() -> Failure {
    Failure::invalid(
        "shared locks, permits and `run_once` need scripts, which this user or server does not run: grant `+eval +evalsha`, or take \
         the key exclusively",
    )
}
