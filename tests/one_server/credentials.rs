//! Passwords that are replaced while locks are held, and providers of the next one.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use lock_core::{LockError, LockManager, LockOptions, credentials::Credentials};
use lock_tests::{
    AcquireFree as _, Direction, HANG, Proxy, RedisServer, ReleaseHeld as _, Request, SECOND,
    assert_fails, eventually, options,
};
use tokio::time::timeout;

const VALID: Duration = Duration::from_secs(2);

/// A server with a user `app` whose password can be replaced.
struct Rotating {
    server: RedisServer,
    password: Mutex<String>,
    number: AtomicU32,
}

impl Rotating {
    fn start() -> Arc<Self> {
        let server = RedisServer::builder()
            .acl("user app on >word0 ~* &* +@all")
            .start();
        Arc::new(Self {
            server,
            password: Mutex::new("word0".to_owned()),
            number: AtomicU32::new(0),
        })
    }

    fn rotate(&self) {
        let next = format!("word{}", self.number.fetch_add(1, Ordering::SeqCst) + 1);
        self.server
            .cli(&["ACL", "SETUSER", "app", "resetpass", &format!(">{next}")]);
        *self.password.lock().expect("no panic") = next;
    }

    fn disconnect(&self) {
        self.server.cli(&["CLIENT", "KILL", "USER", "app"]);
    }

    fn credentials(&self) -> Credentials {
        Credentials::new("app", self.password.lock().expect("no panic").clone())
    }
}

#[tokio::test]
async fn a_password_that_rotates_under_load_costs_no_lease_and_no_error() {
    let rotating = Rotating::start();
    // The commands of the harness do not pass through the proxy.
    let proxy = Proxy::start(rotating.server.port());
    let source = rotating.clone();
    let provider = move || {
        let given = source.credentials().valid_for(VALID);
        async move { Ok::<_, io::Error>(given) }
    };
    let builder = LockManager::builder().credentials(provider);
    let locks = builder.connect(&proxy.url()).await.expect("up");
    let held = locks
        .acquire_free("held", LockOptions::new(SECOND * 6))
        .await;
    let (is_over, rounds) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let load: Vec<_> = (0..8)
        .map(|number| {
            let (locks, is_over, rounds) = (locks.clone(), is_over.clone(), rounds.clone());
            tokio::spawn(async move {
                while !is_over.load(Ordering::SeqCst) {
                    let key = format!("k{}", number % 4);
                    let guard = locks.acquire(key, options()).await?;
                    guard.release().await?;
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
                Ok::<_, LockError>(())
            })
        })
        .collect();
    for _ in 0..3 {
        rotating.rotate();
        proxy.clear_log();
        eventually!(HANG, "a connection is authenticated again" => proxy.requests("AUTH") > 0);
    }
    assert!(rounds.load(Ordering::SeqCst) > 0, "there was no load");
    is_over.store(true, Ordering::SeqCst);
    for task in load {
        let worked = timeout(HANG, task).await.expect("no hang");
        worked.expect("no panic").expect("no error");
    }
    assert!(!held.lease().is_lost());
    // A new connection needs the new password.
    rotating.disconnect();
    eventually!(HANG, "it is held through a new connection" => held.lease().verify().await.is_ok());
    held.lease().verify().await.expect("held");
    held.release_held().await;
}

#[tokio::test]
async fn a_provider_that_fails_does_no_harm_while_the_connection_lasts() {
    let rotating = Rotating::start();
    let (source, fails) = (rotating.clone(), Arc::new(AtomicBool::new(false)));
    let (asked, failing) = (Arc::new(AtomicU32::new(0)), fails.clone());
    let counted = asked.clone();
    let provider = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let given = if failing.load(Ordering::SeqCst) {
            Err(io::Error::other("the identity service is down"))
        } else {
            Ok(source.credentials().valid_for(VALID))
        };
        async move { given }
    };
    let builder = LockManager::builder().credentials(provider);
    let locks = builder.connect(&rotating.server.url()).await.expect("up");
    let held = locks.acquire_free("held", options()).await;
    fails.store(true, Ordering::SeqCst);
    let before = asked.load(Ordering::SeqCst);
    eventually!(HANG, "the provider is called again" => asked.load(Ordering::SeqCst) >= before + 3);
    held.lease().verify().await.expect("held");
    locks
        .acquire_free("k", options())
        .await
        .release_held()
        .await;
    // Without a connection, the manager needs the provider.
    rotating.disconnect();
    let refused = locks.try_acquire("k", options()).await;
    assert_fails!(refused, LockError::Unavailable { .. });
    fails.store(false, Ordering::SeqCst);
    eventually!(HANG, "there are credentials again" => held.lease().verify().await.is_ok());
    held.release_held().await;
}

#[tokio::test]
async fn a_provider_that_panics_or_hangs_is_an_error() {
    let server = RedisServer::start();
    let panicking =
        || -> std::future::Ready<Result<Credentials, io::Error>> { panic!("on purpose") };
    let builder = LockManager::builder().credentials(panicking);
    let failed = timeout(HANG, builder.connect(&server.url())).await;
    let failed = failed.expect("no hang");
    assert_fails!(failed, LockError::Unavailable { .. });
    let hanging = std::future::pending::<Result<Credentials, io::Error>>;
    let builder = LockManager::builder()
        .credentials(hanging)
        .connect_timeout(SECOND / 2);
    let failed = timeout(HANG, builder.connect(&server.url())).await;
    let failed = failed.expect("no hang");
    assert_fails!(failed, LockError::Unavailable { .. });
}

#[tokio::test]
async fn a_password_that_was_replaced_is_unavailable_and_not_invalid() {
    let rotating = Rotating::start();
    let url = rotating.server.url_as("app", "word0");
    let locks = LockManager::connect(&url)
        .await
        .expect("the first password");
    let held = locks.acquire_free("held", options()).await;
    rotating.rotate();
    locks
        .acquire_free("k", options())
        .await
        .release_held()
        .await;
    rotating.disconnect();
    eventually!(HANG, "the connection is gone" => locks.try_acquire("k", options()).await.is_err());
    let refused = locks
        .try_acquire("k", options())
        .await
        .expect_err("a wrong password");
    assert!(
        matches!(refused, LockError::Unavailable { .. }),
        "{refused:?}"
    );
    let shown = format!("{refused:?}");
    assert!(
        shown.contains("user or password") && !shown.contains("word0"),
        "{shown}"
    );
    drop(held);
    let wrong = LockManager::connect(&url).await;
    assert_fails!(wrong, LockError::Invalid { .. });
}

/// Returns how many times connections were authenticated outside of a transaction and inside of one, counting connections on
/// which there were transactions.
fn authenticated(log: &[Request]) -> [usize; 2] {
    let mut connections: BTreeMap<u64, (bool, [usize; 2])> = BTreeMap::new();
    for request in log {
        let (is_open, counts) = connections.entry(request.connection).or_default();
        match &*request.command() {
            "MULTI" => *is_open = true,
            "EXEC" | "DISCARD" => *is_open = false,
            "AUTH" => counts[usize::from(*is_open)] += 1,
            _ => {}
        }
    }
    let is_used = |number: &u64| {
        let mut requests = log.iter();
        requests.any(|request| request.connection == *number && request.command() == "EXEC")
    };
    connections.retain(|number, _| is_used(number));
    let counts = connections.values();
    counts.fold([0, 0], |sum, (_, counts)| {
        [sum[0] + counts[0], sum[1] + counts[1]]
    })
}

#[tokio::test]
async fn no_connection_is_authenticated_in_the_middle_of_a_transaction() {
    let server = RedisServer::builder()
        .acl("user app on >word ~* &* +@all -@scripting")
        .start();
    let proxy = Proxy::start(server.port());
    let (is_over, mut load) = (Arc::new(AtomicBool::new(false)), Vec::new());
    for number in 0..4 {
        // The shortest time after which a connection is authenticated again.
        let credentials = Credentials::new("app", "word").valid_for(SECOND);
        let builder = LockManager::builder().credentials(credentials);
        // A database each, so that no manager changes a key that another one watches.
        let url = format!("{}/{number}", proxy.url());
        let locks = builder.connect(&url).await.expect("up");
        for task in 0..8 {
            let (locks, is_over) = (locks.clone(), is_over.clone());
            load.push(tokio::spawn(async move {
                while !is_over.load(Ordering::SeqCst) {
                    let key = format!("k{task}");
                    let guard = locks.acquire(key, options()).await?;
                    guard.release().await?;
                }
                Ok::<_, LockError>(())
            }));
        }
    }
    // Most of the time, a transaction waits for its first replies.
    proxy.clear_log();
    proxy.delay(Direction::Replies, Duration::from_millis(100));
    eventually(HANG, "all are authenticated a few more times", async || {
        authenticated(&proxy.log()).iter().sum::<usize>() >= 16
    })
    .await;
    is_over.store(true, Ordering::SeqCst);
    for task in load {
        let worked = timeout(HANG, task).await.expect("no hang");
        worked.expect("no panic").expect("no error");
    }
    let [_, in_a_transaction] = authenticated(&proxy.log());
    assert_eq!(in_a_transaction, 0);
}

/// Returns a provider of an outdated token, which returns the right one after this many calls, and the number of its
/// calls.
fn stale(
    times: u32,
) -> (
    impl lock_core::credentials::CredentialsProvider,
    Arc<AtomicU32>,
) {
    let asked = Arc::new(AtomicU32::new(0));
    let counted = asked.clone();
    let provider = move || {
        let is_stale = counted.fetch_add(1, Ordering::SeqCst) < times;
        let password = if is_stale { "stale" } else { "word0" };
        async move { Ok::<_, io::Error>(Credentials::new("app", password)) }
    };
    (provider, asked)
}

#[tokio::test]
async fn a_provider_is_called_again_when_the_server_refuses_its_token() {
    let rotating = Rotating::start();
    for url in [
        rotating.server.url(),
        format!("{}?protocol=2", rotating.server.url()),
    ] {
        let (provider, asked) = stale(2);
        let builder = LockManager::builder().credentials(provider);
        let locks = builder
            .connect(&url)
            .await
            .expect("the third token is right");
        // Two that are stale, and one for each connection: of the manager's thread, and of this runtime.
        assert_eq!(asked.load(Ordering::SeqCst), 2 + 2);
        let guard = locks.acquire_free("k", options()).await;
        guard.release_held().await;
    }
}

#[tokio::test]
async fn a_provider_of_refused_tokens_is_called_again_with_pauses() {
    let rotating = Rotating::start();
    let (provider, asked) = stale(u32::MAX);
    let builder = LockManager::builder().credentials(provider);
    let refused = builder.connect(&rotating.server.url()).await;
    let refused = refused.expect_err("no right token");
    assert!(
        matches!(refused, LockError::Unavailable { .. }),
        "{refused:?}"
    );
    let shown = format!("{refused:?}");
    assert!(
        shown.contains("user or password") && !shown.contains("stale"),
        "{shown}"
    );
    // A few times, with pauses.
    let times = asked.load(Ordering::SeqCst);
    assert!((2..=8).contains(&times), "{times}");
    let (provider, asked) = stale(12);
    let builder = LockManager::builder().credentials(provider);
    let builder = builder.connect_lazily();
    let locks = builder.connect(&rotating.server.url()).await;
    let locks = locks.expect("lazily");
    let waiting = locks.acquire("k", options().wait(HANG)).await;
    waiting
        .expect("the provider was called again")
        .release_held()
        .await;
    assert!(asked.load(Ordering::SeqCst) > 12);
}
