//! Whether a server is fit for locks.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    backend::{
        AcquireOutcome, AcquireRequest, Asks, Backend, Failure, ReleaseOutcome, ReleaseRequest,
        RenewRequest, Renewed,
        redis::{
            RedisBackend,
            commands::read_micros,
            failure,
            link::Link,
            resp::{Value, Word::Text},
            slots::Names,
        },
    },
    clock::{Clock, wall_clock},
    inspect::Health,
    spawner::spawn_beside,
    token::{HolderLabel, OwnerToken, random_name},
};

/// How long the probe's lock lasts if it is not released.
const PROBE_TTL: Duration = Duration::from_secs(5);

/// A server's clock may differ from ours by this much before it is mentioned.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(10);

pub(super) async fn check(backend: &RedisBackend) -> Result<Health, Failure> {
    let mut health = Health {
        round_trip: Duration::ZERO,
        warnings: Vec::new(),
    };
    for (server, names) in backend.0.servers.each() {
        lock_and_unlock(backend, &names).await?;
        let (link, within) = (&server.link, backend.within());
        let sent = Clock::Boot.now();
        let clock = clock_warning(link, within).await?;
        health.round_trip = health.round_trip.max(Clock::Boot.now().since(sent));
        let eviction = eviction_warning(link, within).await?;
        let warnings = clock.into_iter().chain(eviction);
        health.warnings.extend(warnings.map(|warning| {
            if backend.0.servers.are_several() {
                format!("{}: {warning}", link.address().shown())
            } else {
                warning
            }
        }));
    }
    Ok(health)
}

/// Does once what every lock does.
async fn lock_and_unlock(backend: &RedisBackend, names: &Names) -> Result<(), Failure> {
    let full_key: Arc<str> = format!("{}{}", names.check, random_name()).into();
    let token = OwnerToken::new(&HolderLabel::of_this_process());
    let acquired = backend
        .acquire(AcquireRequest {
            full_key: full_key.clone(),
            token: token.clone(),
            ttl: PROBE_TTL,
            known_fencing: 0,
            tokens: 1,
            asks: Asks::Once,
            entry: 0,
            trail: Arc::default(),
        })
        .await?;
    let AcquireOutcome::Granted(_) = acquired.outcome else {
        return Err(failure::nonsense("an acquire of a fresh key"));
    };
    let renewal = RenewRequest {
        full_key: full_key.clone(),
        token: token.clone(),
        ttl: PROBE_TTL,
        acquired: Arc::default(),
    };
    let renewed = backend.renew(vec![renewal], backend.within()).await?;
    match renewed.into_iter().next() {
        Some(Ok(Renewed::Yes)) => {}
        Some(Err(failure)) => return Err(failure),
        Some(Ok(Renewed::NotOurs)) | None => {
            return Err(failure::nonsense("a renewal of a fresh lock"));
        }
    }
    let release = ReleaseRequest {
        full_key,
        token,
        keep: None,
        known_fencing: 0,
        entry: None,
        trail: Arc::default(),
        acquired: Arc::default(),
    };
    match backend.release(release).await?.outcome {
        ReleaseOutcome::Done => Ok(()),
        ReleaseOutcome::NotOurs => Err(failure::nonsense("a release of a fresh lock")),
    }
}

/// Fencing tokens follow the server's clock, so that they grow across a loss of data.
async fn clock_warning(link: &Arc<Link>, within: Duration) -> Result<Option<String>, Failure> {
    let (_, answer) = link.send(&[&[Text("TIME")]], within, None).await?;
    if let Value::ServerError(error) = &answer {
        return Err(failure::answered(error));
    }
    let micros = read_micros(&answer).ok_or_else(|| failure::nonsense("the time"))?;
    let theirs = Duration::from_micros(micros);
    let ours = wall_clock();
    let apart = theirs.abs_diff(ours);
    Ok((apart > CLOCK_TOLERANCE).then(|| {
        format!(
            "the server's clock differs from this machine's by {} s: synchronise both, since fencing tokens follow it",
            apart.as_secs()
        )
    }))
}

/// Warns about an eviction policy, once a manager and server, apart from whoever connects. What cannot be known is not told:
/// a check tells it.
pub(super) fn look_at_eviction(backend: &RedisBackend) {
    if backend.0.looked.swap(true, Ordering::Relaxed) {
        return;
    }
    for (server, _) in backend.0.servers.each() {
        let within = backend.within();
        spawn_beside(async move {
            if let Ok(Eviction::Threatens(policy)) = eviction(&server.link, within).await {
                let server = server.link.address().shown();
                tracing::warn!(server, "{}", warning_of(&policy));
            }
        });
    }
}

/// What an eviction policy means for locks.
enum Eviction {
    Spares,
    Threatens(String),
    /// This user may not know.
    Hidden,
}

/// Locks are keys with an expiry, which every eviction policy but one may delete.
async fn eviction(link: &Arc<Link>, within: Duration) -> Result<Eviction, Failure> {
    let words = [Text("INFO"), Text("memory")];
    let (_, answer) = link.send(&[&words], within, None).await?;
    let info: String = match answer {
        Value::ServerError(error) if error.code() == "NOPERM" => return Ok(Eviction::Hidden),
        Value::ServerError(error) => return Err(failure::answered(&error)),
        Value::BulkString(info) => String::from_utf8_lossy(&info).into_owned(),
        _ => return Err(failure::nonsense("INFO")),
    };
    let field = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    Ok(match (field("maxmemory"), field("maxmemory_policy")) {
        (Some("0"), _) | (_, Some("noeviction") | None) => Eviction::Spares,
        (_, Some(policy)) => Eviction::Threatens(policy.to_owned()),
    })
}

async fn eviction_warning(link: &Arc<Link>, within: Duration) -> Result<Option<String>, Failure> {
    Ok(match eviction(link, within).await? {
        Eviction::Spares => None,
        Eviction::Threatens(policy) => Some(warning_of(&policy)),
        Eviction::Hidden => Some(
            "this user may not run INFO, so the eviction policy is not known: grant it `+info`, or make sure that it is \
             `noeviction`"
                .to_owned(),
        ),
    })
}

fn warning_of(policy: &str) -> String {
    format!(
        "the server may evict locks when its memory is full (maxmemory-policy {policy}): set it to `noeviction`, or keep \
         locks on a server of their own"
    )
}
