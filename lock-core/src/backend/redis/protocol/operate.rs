//! The requests of operators, and the steps of all requests that run on the manager's thread: connecting, and following redirects.

use std::sync::Arc;

use redis::Value;

use crate::{
    backend::{
        Reply,
        on_executor::on_the_manager,
        owner_token::sighting_of,
        redis::{
            protocol::{
                programs::LockKeys,
                redis_store::RedisStore,
                replies::{of_value, read_sighting},
                scripts::{Call, FORCE_RELEASE, FORGET, INSPECT},
            },
            topology::key_location::KeyLocation,
            transport::{
                command::{
                    Arg::{Number, Text},
                    command,
                },
                errors,
                reconnecting::ReconnectingConnection,
                requests::Ready,
            },
        },
    },
    failure::Failure,
    inspect::Sighting,
};

impl RedisStore {
    /// Connects if necessary, on the manager's thread.
    pub(super) async fn connect(
        &self,
        connection: Arc<ReconnectingConnection>,
    ) -> Result<Ready, Failure> {
        if let Some(ready) = connection.ready() {
            return Ok(ready);
        }
        let within = self.within();
        let connected = async move { connection.ready_within(within).await };
        on_the_manager(&self.0.executor, connected).await
    }

    /// Returns the location to try instead, if the failure is a redirect.
    pub(super) async fn redirected(
        &self,
        location: &KeyLocation,
        failure: &Failure,
    ) -> Option<KeyLocation> {
        if !self.0.servers.are_several() {
            return None;
        }
        let (store, location, failure) = (self.clone(), location.clone(), failure.clone());
        let followed = async move { store.0.servers.follow(&location, &failure) };
        self.0.executor.run(followed).await.flatten()
    }

    /// Inspects a key, and names at most this many holders and waiters.
    pub(crate) fn look_at(&self, full_key: Arc<str>, named: usize) -> Reply<Option<Sighting>> {
        let store = self.clone();
        Box::pin(async move {
            let inspect = async |location: KeyLocation| {
                if !location.capabilities(store.within()).await?.scripts {
                    let seen = location.look(&full_key).await?;
                    // There is no queue, only one holder, and no stored result.
                    return Ok(seen.map(|(holder, left)| sighting_of(&holder, left, 0)));
                }
                let keys = LockKeys::new(&location, &full_key);
                let named = [Number(named as u64)];
                let call = Call::of(keys.but_the_mark(), &named);
                read_sighting(&location.run(&INSPECT, call).await?)
            };
            store.0.servers.ask(&full_key, inspect).await
        })
    }

    pub(crate) fn forget_result(&self, full_key: Arc<str>) -> Reply<()> {
        let store = self.clone();
        Box::pin(async move {
            let forget = async |location: KeyLocation| {
                let [lock, .., result, _] = location.keys(&full_key);
                if !location.capabilities(store.within()).await?.forwards_all {
                    return location
                        .run(&FORGET, Call::of(&[lock, result], &[]))
                        .await
                        .map(drop);
                }
                let delete = [command(&[&[Text("DEL"), result]])];
                let connection = &location.server.connection;
                let sent = location.send(connection, delete, store.within(), None);
                let (_, mut replies) = sent.await?;
                of_value(replies.pop().unwrap_or(Value::Nil)).map(drop)
            };
            store.0.servers.ask(&full_key, forget).await
        })
    }

    pub(crate) fn force_release_key(&self, full_key: Arc<str>, known_fencing: u64) -> Reply<()> {
        let store = self.clone();
        Box::pin(async move {
            let force_release = async |location: KeyLocation| {
                if !location.capabilities(store.within()).await?.scripts {
                    return location.force_release_by_commands(&full_key).await;
                }
                let keys = LockKeys::new(&location, &full_key);
                let known = [Number(known_fencing)];
                let call = Call::of(keys.but_the_mark(), &known).with_few(keys.lock());
                match location.run(&FORCE_RELEASE, call).await? {
                    Value::Int(_) => Ok(()),
                    _ => Err(errors::nonsense("a forced release")),
                }
            };
            store.0.servers.ask(&full_key, force_release).await
        })
    }
}
