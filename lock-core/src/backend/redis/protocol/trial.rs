//! A lock that is only tried: while a manager connects, and for a check.
//!
//! The rights of a user are found by using them: a missing right is reported before the first lock needs it.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use crate::{
    backend::{
        Acquire, Backend, Release, Renew,
        owner::Owner,
        owner_token::{OwnerTokens, Scheme, random_name},
        redis::{
            protocol::{
                acquire,
                redis_store::{Acked, RedisStore},
                release,
                replies::NO_LOCK,
                rights,
                scripts::{Call, RELEASE_UNCONTENDED, TRIAL},
                server_role,
            },
            topology::{
                companions::{GRANTS, tag_in},
                key_location::KeyLocation,
            },
            transport::{
                CLOCK,
                command::Arg::{Joined, Text},
                errors,
            },
        },
    },
    engine::reply::{AcquireOutcome, QueueMode, ReleaseOutcome, Renewed},
    failure::Failure,
    fencing::KnownTokens,
    inspect::ServerInfo,
    key::LockKey,
    mode::Mode,
    moment::Moment,
    options::RESERVED,
    runtime::together::together,
};

/// Stands between the prefix and the name of a lock that is only tried.
const CHECK: &str = "__check__:";

/// How long the lock of a check lasts if it is not released.
const CHECK_TTL: Duration = Duration::from_secs(1);

impl RedisStore {
    /// Tries a lock on each server while a manager connects, and logs the server that was found. If no server was `reached`, that is
    /// the failure.
    ///
    /// Only permanent errors are a failure: a missing right, a command that the server does not know, or a key that holds something
    /// else. In all other cases the locks themselves retry.
    pub(crate) async fn try_out(
        &self,
        reached: Result<(), Failure>,
        until: Moment,
    ) -> Result<(), Failure> {
        let left = || until.since(CLOCK.now());
        let homes = self.0.servers.each();
        if let Err(failure) = reached {
            return Err(rights::explained(self, &self.0.servers.any(), failure, left()).await);
        }
        // At the same time. A trial that is not awaited would leave its key until its ttl ends.
        let tried = together(homes.iter().map(|location| try_one(self, location, until)));
        if let Ok(tried) = timeout(left(), tried).await {
            for (location, tried) in homes.iter().zip(tried) {
                if let Err(failure) = tried {
                    return Err(rights::explained(self, location, failure, left()).await);
                }
            }
        } else {
            tracing::warn!(server = ?self, "no lock could be tried in time; the locks themselves retry");
        }
        let mut is_warned = false;
        for location in &homes {
            let Some(current) = location.server.connection.snapshot() else {
                continue;
            };
            announce(self, location, left()).await;
            if current.capabilities.is_some_and(|known| !known.scripts) && !is_warned {
                let server = location.server.connection.address().shown();
                let warning = rights::without_scripts(self, location, left()).await;
                tracing::warn!(server, "{warning}");
                is_warned = true;
            }
        }
        Ok(())
    }
}

/// Only a permanent failure is one, and a server that stays a replica until then.
async fn try_one(store: &RedisStore, location: &KeyLocation, until: Moment) -> Result<(), Failure> {
    if store.0.servers.only().is_some() {
        server_role::expect_a_primary(store, location, until).await?;
    }
    let none = KnownTokens::of_clocks(0);
    let Err(failure) = try_a_lock(store, location, Acked::NeedNot, &none).await else {
        return Ok(());
    };
    if !failure.is_transient() {
        return Err(failure);
    }
    let server = location.server.connection.address().shown();
    tracing::warn!(
        server,
        ?failure,
        "no lock could be taken just now; the locks themselves retry"
    );
    Ok(())
}

/// Does once what every lock does. If it is interrupted, the key ends with its ttl.
pub(super) async fn try_a_lock(
    store: &RedisStore,
    location: &KeyLocation,
    acked: Acked,
    known_tokens: &KnownTokens,
) -> Result<Option<String>, Failure> {
    if location.capabilities(store.within()).await?.scripts {
        expect_rights(location).await?;
    } else if store.0.is_one_of_several {
        return Err(no_scripts());
    }
    if let (Some(replica_acks), Acked::NeedNot) = (&location.server.replica_acks, acked) {
        replica_acks.try_out().await?;
    }
    let key = key_on(store, location);
    let given = store.0.scope.check_key.as_deref();
    let given = given.filter(|given| *given == &*key);
    let clock = store.0.servers.clock_of()(&key);
    let known_fencing = known_tokens.of(clock);
    let label = location.server.connection.address().label();
    // Polling is right for its waiters, whether or not scripts may run here.
    let token = OwnerTokens::of(label).next(Scheme::Deletes);
    let (own_key, mode) = (LockKey::new(&*key), Mode::Exclusive);
    let owner = Owner::new(token, &Arc::default(), mode, &own_key, key, clock);
    let (owner, may_be_busy) = (Arc::new(owner), given.is_some());
    let tried = lock_and_unlock(store, owner, may_be_busy, acked, known_fencing).await;
    tried.map_err(|failure| match (failure, given) {
        (Failure::Invalid(reason), Some(given)) if *reason == *NO_LOCK => {
            let given = given.escape_debug();
            Failure::invalid(format!("`{given}` cannot be the check_key: {reason}"))
        }
        (other, _) => other,
    })
}

/// The failure of one of several servers where scripts cannot run.
pub(super) fn no_scripts() -> Failure {
    errors::denied(
        "several servers vote by scripts, and `EVAL` and `EVALSHA` cannot both be used: the user lacks `+eval +evalsha`, or \
         the server does not have these commands"
            .to_owned(),
    )
}

/// Verifies that scripts may call all that they call, also for a lock that others wait for or share. In the middle of a script a
/// refusal would leave the lock half done.
async fn expect_rights(location: &KeyLocation) -> Result<(), Failure> {
    let (names, random) = (&location.names, random_name());
    let call = Call {
        keys: &[Joined(&names.check, &random)],
        arguments: &[Joined(&names.grants, ":check")],
    };
    // The usual release is a script that the release of the trial lock does not run. The server is to know it before the first lock. What
    // it refuses of that script, it refuses of the other one, too, which names the right.
    let nothing = Call {
        keys: &[Joined(&names.check, &random); 2],
        arguments: &[Text("")],
    };
    let (tried, _) = tokio::join!(
        location.run(&TRIAL, call),
        location.run(&RELEASE_UNCONTENDED, nothing),
    );
    let refused: Option<(String, String)> = redis::from_redis_value(tried?).ok().flatten();
    let Some((name, words)) = refused else {
        return Ok(());
    };
    let name = name.to_ascii_lowercase();
    if words.contains("nknown") {
        return Err(errors::no_streams(
            location.server.connection.address().shown(),
        ));
    }
    let object = match &*name {
        "time" => String::new(),
        "publish" | "spublish" => format!(" &{GRANTS}*"),
        _ => format!(" ~{RESERVED}*"),
    };
    Err(errors::denied(format!(
        "scripts need `+{name}{object}`: {words}"
    )))
}

/// The key of the trial lock on a server: a key that stands for those of the locks, if there is one here.
fn key_on(store: &RedisStore, location: &KeyLocation) -> Arc<str> {
    let (scope, servers) = (&store.0.scope, &store.0.servers);
    let (prefix, random) = (&scope.prefix, random_name());
    let key = match &scope.check_key {
        Some(key) => Some(key.clone()),
        None if prefix.is_empty() => None,
        // Of no effect if the prefix has a tag. A brace that the prefix leaves open changes the tag, and so the server of the key.
        None if location.names.are_of_a_slot() => {
            let tag = tag_in(location.slot);
            Some(format!("{prefix}{CHECK}{{{tag}}}:{random}"))
        }
        None => Some(format!("{prefix}{CHECK}{random}")),
    };
    let is_here = |key: &String| Arc::ptr_eq(&servers.location(key).server, &location.server);
    let key = key.filter(is_here);
    key.unwrap_or_else(|| format!("{}{random}", location.names.check))
        .into()
}

/// Returns a warning if the lock ended before all was done. If the key is that of other locks, too, it may be busy: the rights are
/// tried all the same.
async fn lock_and_unlock(
    store: &RedisStore,
    owner: Arc<Owner>,
    may_be_busy: bool,
    acked: Acked,
    known_fencing: u64,
) -> Result<Option<String>, Failure> {
    let started = CLOCK.now();
    let gone = || match CLOCK.now().since(started) {
        late if late >= CHECK_TTL => Ok(Some(format!(
            "a lock with a ttl of {CHECK_TTL:?} could not be taken, renewed and released in {late:?}: choose longer ttls, or find \
             what slows this server down"
        ))),
        early => Err(Failure::no_reply(format!(
            "the lock of the check was gone after {early:?} of its {CHECK_TTL:?}: something deletes or evicts keys"
        ))),
    };
    let request = Acquire {
        owner: owner.clone(),
        ttl: CHECK_TTL,
        known_fencing,
        tokens: 1,
        queue_mode: QueueMode::DoNotQueue,
        queued_ttl: None,
        after: None,
    };
    // By the scripts, which need all rights.
    store.note_others(&owner.key, true);
    let is_ours = match acquire::acquire(store, request, acked).await?.outcome {
        AcquireOutcome::Granted(_) => true,
        AcquireOutcome::Busy(_) if may_be_busy => false,
        AcquireOutcome::Busy(_) | AcquireOutcome::Undo | AcquireOutcome::Done(_) => {
            return Err(errors::nonsense("an acquire of a fresh key"));
        }
    };
    // Longer than what is left at any time, so that the renewal has to change the key.
    let renewal = Renew::without_tokens(&owner, CHECK_TTL + Duration::from_millis(1));
    let renewed = store.renew(vec![renewal], store.within()).await?;
    match renewed.into_iter().next() {
        Some(Err(failure)) => return Err(failure),
        Some(Ok(Renewed::NotOurs)) | None if is_ours => return gone(),
        _ => {}
    }
    let release = Release {
        owner,
        result: None,
        keep: None,
        known_fencing: 0,
        may_be_queued: false,
        valid_until: Moment::NEVER,
    };
    store.note_others(&release.owner.key, true);
    let key = release.owner.key.clone();
    let released = release::release(store, release).await;
    // Other keys may share the mark.
    store.note_others(&key, false);
    match released?.outcome {
        ReleaseOutcome::NotOurs if is_ours => gone(),
        _ => Ok(None),
    }
}

/// Logs the server that was found.
async fn announce(store: &RedisStore, location: &KeyLocation, within: Duration) {
    let Some(found) = server_info(store, location, within).await else {
        return;
    };
    tracing::info!(
        server = found.address,
        kind = found.kind.as_deref().unwrap_or("unknown"),
        version = found.version.as_deref().unwrap_or("unknown"),
        protocol = if found.protocol == 3 {
            "RESP3"
        } else {
            "RESP2"
        },
        mode = if found.notifies { "push" } else { "polling" },
        scripts = found.scripts,
        "connected"
    );
}

/// The server that was found, if there is a connection to it.
pub(super) async fn server_info(
    store: &RedisStore,
    location: &KeyLocation,
    within: Duration,
) -> Option<ServerInfo> {
    let current = location.server.connection.snapshot()?;
    let greeting = location.server.connection.greeting(within).await;
    let scripts = current.capabilities.is_some_and(|known| known.scripts);
    let has_resp3 = current.greeting.is_some();
    // In a cluster, grants arrive on a connection beside this one, once a task waits.
    let delivers = if store.0.servers.are_several() {
        scripts && has_resp3 && !greeting.is_before(7)
    } else {
        current.is_subscribed
    };
    Some(ServerInfo {
        // With sentinels, the primary that they named.
        address: current.address.shown().to_owned(),
        kind: greeting.server,
        version: greeting.version,
        protocol: if has_resp3 { 3 } else { 2 },
        scripts,
        notifies: delivers && !store.0.is_one_of_several,
    })
}
