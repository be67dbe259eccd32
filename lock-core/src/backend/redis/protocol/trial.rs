//! The trial lock, which is acquired and released while a manager connects, and for a check.
//!
//! The rights of a user are tested by using them, so that a missing right is reported before the first lock needs it.

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
                release, rights,
                scripts::{Call, RELEASE_UNCONTENDED, TRIAL},
                server_info,
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
    engine::reply::{AcquireOutcome, QueueMode, ReleaseOutcome},
    failure::Failure,
    fencing::KnownTokens,
    key::LockKey,
    mode::Mode,
    moment::Moment,
    options::RESERVED,
    runtime::together::together,
};

/// The text between the prefix and the name of a trial lock.
const CHECK: &str = "__check__:";

/// How long a trial lock lasts if it is not released.
const CHECK_TTL: Duration = Duration::from_secs(1);

impl RedisStore {
    /// Tries a lock on each server while a manager connects, and logs the server that was found. If no server was `reached`, it
    /// fails with that failure.
    ///
    /// It also fails on permanent errors: a missing right, a command that the server does not know, or a key that holds
    /// something else. All other errors are left to the locks themselves, which retry.
    pub(crate) async fn try_out(
        &self,
        reached: Result<(), Failure>,
        until: Moment,
    ) -> Result<(), Failure> {
        reached.map_err(|failure| rights::explained(&self.0.servers.any(), failure))?;
        let homes = self.0.servers.each();
        // All servers at the same time. A trial that is not awaited would leave its key until its ttl ends.
        let tried = together(homes.iter().map(|location| try_one(self, location, until))).await;
        for (location, tried) in homes.iter().zip(tried) {
            let info = tried.map_err(|failure| rights::explained(location, failure))?;
            log_connected(self, location, info.as_deref());
        }
        Ok(())
    }
}

/// Tries a lock on one server, and returns its reply to `INFO`. Fails only on a permanent error, or if the server is still a
/// replica at `until`.
async fn try_one(
    store: &RedisStore,
    location: &KeyLocation,
    until: Moment,
) -> Result<Option<String>, Failure> {
    let info = server_info::expect_a_primary(store, location, until).await?;
    let (none, left) = (KnownTokens::of_clocks(0), until.since(CLOCK.now()));
    let address = location.server.connection.address();
    let tried = timeout(left, try_a_lock(store, location, Acked::NeedNot, &none)).await;
    match tried.unwrap_or_else(|_| Err(errors::late(address, left))) {
        Err(failure) if failure.is_transient() => tracing::warn!(
            server = address.shown(),
            ?failure,
            "no lock could be acquired at the moment; the locks themselves retry"
        ),
        tried => drop(tried?),
    }
    Ok(info)
}

/// Logs the server that was found, and the settings that may endanger locks there.
fn log_connected(store: &RedisStore, location: &KeyLocation, info: Option<&str>) {
    let Some(current) = location.server.connection.snapshot() else {
        return;
    };
    let found = server_info::as_found(store, &current, info);
    let server = &*found.address;
    tracing::info!(
        server,
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
    let no_scripts =
        (!found.scripts).then(|| rights::without_scripts(store.0.timing.polling_pause));
    let warnings = [no_scripts, server_info::eviction_warning(info)];
    for warning in warnings.iter().flatten() {
        tracing::warn!(server, "{warning}");
    }
}

/// Returns the failure of one of several servers where scripts cannot be run.
pub(super) fn no_scripts() -> Failure {
    errors::denied(
        "several servers vote by scripts, and `EVAL` and `EVALSHA` cannot both be used: the user lacks `+eval +evalsha`, or \
         the server does not have these commands"
            .to_owned(),
    )
}

/// Acquires, renews and releases a trial lock. Returns a warning if that took longer than its lease.
///
/// # Cancel safety
///
/// If the future is dropped, or a reply never arrives, the key expires after its ttl.
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
    let is_check_key = store.0.scope.check_key.as_deref() == Some(&*key);
    let (own_key, clock) = (LockKey::new(&*key), store.0.servers.clock_of()(&key));
    // This token says that waiters poll, which works with and without scripts.
    let label = location.server.connection.address().label();
    let token = OwnerTokens::of(label).next(Scheme::Deletes);
    let (mode, others) = (Mode::Exclusive, Arc::default());
    let owner = Arc::new(Owner::new(token, &others, mode, &own_key, key, clock));
    let request = Acquire {
        owner: owner.clone(),
        ttl: CHECK_TTL,
        known_fencing: known_tokens.of(clock),
        tokens: 1,
        queue_mode: QueueMode::DoNotQueue,
        queued_ttl: None,
        after: None,
    };
    let started = CLOCK.now();
    // This makes it use the script, which the server knows from then on.
    store.note_others(&own_key, true);
    let acquired = acquire::acquire(store, request, acked).await;
    let acquired = acquired.map_err(|failure| match failure {
        Failure::Invalid(reason) if is_check_key => {
            Failure::invalid(format!("the check_key cannot be used: {reason}"))
        }
        other => other,
    })?;
    // A key that other locks also use may be busy. The rights are tested nevertheless.
    let is_ours = matches!(acquired.outcome, AcquireOutcome::Granted(_));
    // Longer than the remaining time ever is, so that the renewal has to change the key.
    let renewal = Renew::without_tokens(&owner, CHECK_TTL + Duration::from_millis(1));
    let renewed = store.renew(vec![renewal], store.within()).await?;
    // If the lease has ended by now, the release shows it.
    renewed.into_iter().collect::<Result<Vec<_>, _>>()?;
    let release = Release {
        owner,
        result: None,
        keep: None,
        known_fencing: 0,
        // This makes it use the general release script, which the server knows from then on.
        may_be_queued: true,
        valid_until: Moment::NEVER,
    };
    let released = release::release(store, release).await?;
    let took = CLOCK.now().since(started);
    match released.outcome {
        ReleaseOutcome::NotOurs if is_ours && took < CHECK_TTL => Err(Failure::no_reply(format!(
            "the lock of the check was gone after {took:?} of its {CHECK_TTL:?}: something deletes or evicts keys"
        ))),
        ReleaseOutcome::NotOurs if is_ours => Ok(Some(format!(
            "a lock with a ttl of {CHECK_TTL:?} could not be taken, renewed and released in {took:?}: choose longer ttls, or find what \
             slows this server down"
        ))),
        _ => Ok(None),
    }
}

/// Returns the key of the trial lock on a server: the one that represents those of the locks, if it is on this server.
fn key_on(store: &RedisStore, location: &KeyLocation) -> Arc<str> {
    let (scope, servers, random) = (&store.0.scope, &store.0.servers, random_name());
    let reserved = || format!("{}{random}", location.names.check);
    let key = match (&scope.check_key, &*scope.prefix) {
        (Some(key), _) => key.clone(),
        (None, "") => reserved(),
        // Without effect if the prefix has a tag. A brace that the prefix leaves open changes the tag, and therefore the server
        // of the key.
        (None, prefix) if location.names.are_of_a_slot() => {
            format!("{prefix}{CHECK}{{{}}}:{random}", tag_in(location.slot))
        }
        (None, prefix) => format!("{prefix}{CHECK}{random}"),
    };
    let is_here = Arc::ptr_eq(&servers.location(&key).server, &location.server);
    if is_here { key } else { reserved() }.into()
}

/// Verifies that scripts may run all commands that they call, including those for a lock that others wait for or share. In the
/// middle of a script, a refusal would leave the lock in an inconsistent state.
async fn expect_rights(location: &KeyLocation) -> Result<(), Failure> {
    let (names, random) = (&location.names, random_name());
    let key = Joined(&names.check, &random);
    let (keys, channel) = ([key], [Joined(&names.grants, ":check")]);
    let call = Call::of(&keys, &channel);
    // The usual release is a script that the release of the trial lock does not run, and the server should know it before the
    // first lock. The server refuses nothing in this script that it does not also refuse in the trial script, which names the
    // right.
    let (keys, token) = ([key; 2], [Text("")]);
    let nothing = Call::of(&keys, &token);
    let (tried, _) = tokio::join!(
        location.run(&TRIAL, call),
        location.run(&RELEASE_UNCONTENDED, nothing),
    );
    let refused: Option<(String, String)> = redis::from_redis_value(tried?).ok().flatten();
    let Some((name, words)) = refused else {
        return Ok(());
    };
    // The words of a refusal may contain a user's name, which may be any text.
    let is_refused = ["user executing the script", "ACL failure", "NOPERM"];
    let is_unknown =
        words.contains("nknown") && !is_refused.iter().any(|said| words.contains(said));
    if is_unknown && name == "XADD" {
        let server = location.server.connection.address().shown();
        return Err(errors::no_streams(server));
    }
    if is_unknown {
        return Err(Failure::invalid(format!(
            "{} cannot keep locks: it has no `{name}` ({words}); use Redis 6.2 or later, or Valkey",
            location.server.connection.address().shown()
        )));
    }
    let object = match &*name {
        "TIME" => String::new(),
        "PUBLISH" | "SPUBLISH" => format!(" &{GRANTS}*"),
        _ => format!(" ~{RESERVED}*"),
    };
    Err(errors::denied(format!(
        "scripts need `+{}{object}`: {words}",
        name.to_ascii_lowercase()
    )))
}
