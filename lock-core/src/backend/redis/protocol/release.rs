//! The release: one attempt, for every kind of lock, server and connection. The driver retries it until it is certain.
//!
//! It is polled like the acquire. If its future is dropped, or its reply never arrives, the driver tries again. A release
//! compares the owner token, so any number of releases has the effect of one.

use redis::Value;

use crate::{
    backend::{
        Answered, Release, Reply,
        on_executor::on_the_manager,
        redis::{
            protocol::{
                messages,
                programs::{LockKeys, ReleaseArguments, release_call},
                redis_store::RedisStore,
                replies::{of_value, read_released},
                scripts::RELEASE,
            },
            topology::{key_location::KeyLocation, servers::MOST_HOPS},
            transport::{redirect::NodeRole, requests::Ready},
        },
    },
    engine::reply::ReleaseOutcome,
    failure::Failure,
};

/// Makes one attempt at a release, wherever the key is.
pub(crate) fn release(store: &RedisStore, request: Release) -> Reply<Answered<ReleaseOutcome>> {
    let store = store.clone();
    Box::pin(async move {
        let owner = &request.owner;
        let mut location = store.0.servers.location(&owner.full_key);
        let (mut hops, mut redirecting) = (0, None);
        // Bounded by the number of redirects.
        loop {
            let released = match store.session_to_release(&location, &request).await {
                Ok(ready) => release_at(&store, &location, &ready, &request).await,
                Err(failure) => Err(failure),
            };
            let failure = match released {
                Ok(mut released) => {
                    // Requests that left earlier for the node that redirects have been executed or refused there.
                    let settles = |order: &_| owner.in_flight.is_settled_by(*order);
                    released.order = redirecting.filter(settles).or(released.order);
                    return Ok(released);
                }
                Err(failure) => failure,
            };
            match store.redirected(&location, &failure).await {
                Some(next) if hops < MOST_HOPS => location = next,
                _ => return Err(failure),
            }
            redirecting = redirecting.or_else(|| owner.released_on.only_connection());
            hops += 1;
        }
    })
}

impl RedisStore {
    /// Returns the connection for a release: that of the acquire, if the acquire may still be in flight.
    async fn session_to_release(
        &self,
        location: &KeyLocation,
        request: &Release,
    ) -> Result<Ready, Failure> {
        let server = &location.server;
        match server.ready_to_release(request, &self.0.executor) {
            Some(ready) => Ok(ready),
            None => {
                self.connect(server.releasing(&request.owner.in_flight))
                    .await
            }
        }
    }
}

async fn release_at(
    store: &RedisStore,
    location: &KeyLocation,
    ready: &Ready,
    request: &Release,
) -> Result<Answered<ReleaseOutcome>, Failure> {
    let known = ready.capabilities()?;
    if !known.scripts {
        let (location, request) = (location.clone(), request.clone());
        let connection = ready.reconnecting.clone();
        let by_commands = async move { location.release_by_commands(&connection, &request).await };
        return on_the_manager(&store.0.executor, by_commands).await;
    }
    // One call of that script may release several locks.
    if known.forwards_all && goes_plainly(store, location, request) {
        let released = messages::release(location, ready, request).await;
        ready.expect_its_form(&released);
        let released = released?;
        // A request waits for the lock, or it is no longer held.
        store.note_others(&request.owner.key, released.is_none());
        if let Some(released) = released {
            return Ok(released);
        }
    }
    let keys = LockKeys::new(location, &request.owner.full_key);
    let arguments = ReleaseArguments::new(location, request).words();
    let call = release_call(&keys, &arguments, request.owner.mode);
    let within = ready.reconnecting.reply_within();
    let sent = location.call(ready, &RELEASE, call, &request.owner.released_on, within);
    let reply: Value = Box::pin(sent).await?;
    let released = read_released(&of_value(reply)?, ready.id());
    ready.expect_its_form(&released);
    released
}

/// Returns `true` if the short script, which does not change the queue, can release the lock: no request is expected to wait, and no
/// other request for the key may be in flight.
fn goes_plainly(store: &RedisStore, location: &KeyLocation, request: &Release) -> bool {
    request.owner.mode.is_alone()
        && request.result.is_none()
        && request.keep.is_none()
        && !request.may_be_queued
        && request.owner.released_on.is_empty()
        && request.owner.in_flight.is_empty()
        && location.server.replica_acks.is_none()
        && location.node_role == NodeRole::ServesSlot
        && !store.0.is_one_of_several
        && !store.expects_others(&request.owner.key)
}
