//! Requests at the location of a key, through redirects. They run on the manager's thread, and connect if need be.

use std::sync::Arc;

use redis::Value;

use crate::{
    backend::{
        Acquire, Answered, Release, Reply,
        on_executor::on_the_manager,
        owner_token::sighting_of,
        redis::{
            protocol::{
                redis_store::{Acked, RedisStore},
                replies::{of_reply, of_value, read_acquired, read_released, read_sighting},
                scripts::{ACQUIRE, Call, FORCE_RELEASE, INSPECT, RELEASE},
            },
            topology::{key_location::KeyLocation, sharded_subscription::GrantDelivery},
            transport::{
                capabilities::Capabilities,
                command::{
                    Arg::{Number, Text},
                    command,
                },
                errors,
            },
        },
    },
    engine::reply::{AcquireOutcome, QueueMode, ReleaseOutcome},
    failure::Failure,
    inspect::Sighting,
    mode::Mode,
};

impl RedisStore {
    /// Takes a key by all steps that it needs, on the manager's thread.
    pub(crate) fn take_on_the_manager(&self, request: Acquire) -> Reply<Answered<AcquireOutcome>> {
        let store = self.clone();
        let acquired = async move { store.take(&request, Acked::Must).await };
        on_the_manager(&self.0.executor, acquired)
    }

    /// Releases a key by all steps that it needs, on the manager's thread.
    pub(crate) fn let_go_on_the_manager(
        &self,
        request: Release,
    ) -> Reply<Answered<ReleaseOutcome>> {
        let store = self.clone();
        let released = async move { store.let_go(&request).await };
        on_the_manager(&self.0.executor, released)
    }

    /// Releases, wherever the key is.
    pub(crate) async fn let_go(
        &self,
        request: &Release,
    ) -> Result<Answered<ReleaseOutcome>, Failure> {
        let (mut is_first, mut passed) = (true, None);
        let release = |location: KeyLocation| {
            // Requests that left for the redirecting node on the same connection have been executed or refused there.
            if !is_first {
                passed = passed.or_else(|| request.owner.released_on.only_connection());
            }
            is_first = false;
            async move { self.release_at(&location, request).await }
        };
        let mut released = self.0.servers.ask(&request.owner.full_key, release).await?;
        if let Some(passed) = passed
            && request.owner.in_flight.is_settled_by(passed)
        {
            released.order = Some(passed);
        }
        Ok(released)
    }

    pub(crate) async fn take(
        &self,
        request: &Acquire,
        acked: Acked,
    ) -> Result<Answered<AcquireOutcome>, Failure> {
        let acquire = async |location| self.acquire_at(&location, request, acked).await;
        self.0.servers.ask(&request.owner.full_key, acquire).await
    }

    async fn acquire_at(
        &self,
        location: &KeyLocation,
        request: &Acquire,
        acked: Acked,
    ) -> Result<Answered<AcquireOutcome>, Failure> {
        let acquired = match location.capabilities(self.within()).await? {
            Capabilities::Commands if request.owner.mode != Mode::Exclusive => {
                return Err(needs_scripts());
            }
            Capabilities::Commands => {
                let acquired = location
                    .acquire_by_commands(request, self.0.timing.mark())
                    .await?;
                let is_busy = !matches!(acquired.outcome, AcquireOutcome::Granted(_));
                self.note_others(&request.owner.key, is_busy);
                acquired
            }
            Capabilities::Scripts => self.acquire_by_script(location, request).await?,
        };
        if let (Some(replica_acks), AcquireOutcome::Granted(_), Acked::Must) =
            (&location.server.replica_acks, &acquired.outcome, acked)
        {
            replica_acks.gather(acquired.order).await?;
        }
        Ok(acquired)
    }

    async fn acquire_by_script(
        &self,
        location: &KeyLocation,
        request: &Acquire,
    ) -> Result<Answered<AcquireOutcome>, Failure> {
        // A key without contention needs no subscription.
        if request.queue_mode == QueueMode::JoinQueue
            && location.delivery() == GrantDelivery::NotSubscribedYet
            && !self.expects_others(&request.owner.key)
        {
            let asked = self.ask_for(location, request, QueueMode::DoNotQueue);
            let acquired = asked.await?;
            if acquired.outcome.found_it_free() {
                return Ok(acquired);
            }
            self.note_others(&request.owner.key, true);
        }
        let queue_mode = match request.queue_mode {
            QueueMode::DoNotQueue => QueueMode::DoNotQueue,
            wanted => location.listen(self.within()).await?.queue_mode(wanted),
        };
        self.ask_for(location, request, queue_mode).await
    }

    async fn ask_for(
        &self,
        location: &KeyLocation,
        request: &Acquire,
        queue_mode: QueueMode,
    ) -> Result<Answered<AcquireOutcome>, Failure> {
        let (arguments, count) =
            location.acquire_arguments(request, queue_mode, self.0.timing.mark());
        let call = Call {
            keys: &location.keys(&request.owner.full_key)
                [..KeyLocation::declared(request.owner.mode)],
            arguments: &arguments[..count],
        };
        let (connection, in_flight) = (location.server.holding(), &request.owner.in_flight);
        let within = connection.acquire_within(request.ttl);
        let ran = location.run_on(connection, &ACQUIRE, call, within, Some(in_flight));
        let (id, reply) = ran.await?;
        let reply = of_reply(reply, id, in_flight)?;
        let acquired = read_acquired(&reply, id, queue_mode);
        connection.expect_its_form(id, &acquired);
        acquired
    }

    async fn release_at(
        &self,
        location: &KeyLocation,
        request: &Release,
    ) -> Result<Answered<ReleaseOutcome>, Failure> {
        let capabilities = location.capabilities(self.within()).await?;
        let connection = location.server.releasing(&request.owner.in_flight);
        if capabilities == Capabilities::Commands {
            return location.release_by_commands(&connection, request).await;
        }
        let (arguments, count) = location.release_arguments(request);
        let call = Call {
            keys: &location.keys(&request.owner.full_key)
                [..KeyLocation::declared(request.owner.mode)],
            arguments: &arguments[..count],
        };
        let (within, in_flight) = (connection.reply_within(), Some(&request.owner.released_on));
        let ran = location.run_on(&connection, &RELEASE, call, within, in_flight);
        let (id, reply) = ran.await?;
        let released = read_released(&of_value(reply)?, id);
        connection.expect_its_form(id, &released);
        released
    }

    /// Looks at a key, and names so many holders and waiters.
    pub(crate) fn look_at(&self, full_key: Arc<str>, named: usize) -> Reply<Option<Sighting>> {
        let store = self.clone();
        Box::pin(async move {
            let inspect = async |location: KeyLocation| {
                if location.capabilities(store.within()).await? == Capabilities::Commands {
                    let seen = location.look(&full_key).await?;
                    // There is no queue, one holder, and no result of a run.
                    return Ok(seen.map(|(holder, left)| sighting_of(&holder, left, 0)));
                }
                let call = Call {
                    keys: &location.keys(&full_key)[..KeyLocation::declared(Mode::Exclusive)],
                    arguments: &[Number(named as u64)],
                };
                read_sighting(&location.run(&INSPECT, call).await?)
            };
            store.0.servers.ask(&full_key, inspect).await
        })
    }

    pub(crate) fn forget_on_the_manager(&self, full_key: Arc<str>) -> Reply<()> {
        let store = self.clone();
        Box::pin(async move {
            let forget = async |location: KeyLocation| {
                let [.., result] = location.keys(&full_key);
                let delete = [command(&[&[Text("DEL"), result]])];
                let connection = &location.server.connection;
                let sent = location.send(connection, delete, store.within(), None);
                let (_, mut replies) = sent.await?;
                of_value(replies.pop().unwrap_or(Value::Nil)).map(drop)
            };
            store.0.servers.ask(&full_key, forget).await
        })
    }

    pub(crate) fn force_release_on_the_manager(
        &self,
        full_key: Arc<str>,
        known_fencing: u64,
    ) -> Reply<()> {
        let store = self.clone();
        Box::pin(async move {
            let force_release = async |location: KeyLocation| {
                if location.capabilities(store.within()).await? == Capabilities::Commands {
                    return location.force_release_by_commands(&full_key).await;
                }
                let call = Call {
                    keys: &location.keys(&full_key)[..KeyLocation::declared(Mode::Exclusive)],
                    arguments: &[Number(known_fencing)],
                };
                match location.run(&FORCE_RELEASE, call).await? {
                    Value::Int(_) => Ok(()),
                    _ => Err(errors::nonsense("a forced release")),
                }
            };
            store.0.servers.ask(&full_key, force_release).await
        })
    }
}

/// For a lock that is not exclusive, and a body that is to run once, where scripts may not run.
fn needs_scripts() -> Failure {
    Failure::invalid(
        "shared locks, permits and `run_once` need scripts, which this user or server does not run: grant `+eval +evalsha`, or take \
         the key exclusively",
    )
}
