//! Locks over TLS. A server or a client with a wrong certificate causes a clear error, never a connection.

use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use lock_core::{LockError, LockGuard, LockManager, LockManagerBuilder, LockOptions, Tls};
use lock_tests::{
    AcquireFree as _, AskClients, Certificates, FakeServer, HANG, KeyAndCertificate, Log, Proxy,
    RedisServer, ReleaseHeld as _, SECOND, Scope, eventually, invalid, patient, unavailable,
};
use tokio::{sync::Barrier, time::timeout};

use crate::bad_input::full_text;

const SECRET: &str = "hunter2";

// Only the server of the distribution was built with TLS.
fn start(certificates: &Arc<Certificates>) -> RedisServer {
    RedisServer::builder()
        .tls(certificates, AskClients::Never)
        .start()
}

fn server() -> (RedisServer, Arc<Certificates>) {
    let certificates = Arc::new(Certificates::new());
    (start(&certificates), certificates)
}

fn trusting(certificates: &Certificates) -> Tls {
    Tls::new().authority(certificates.authority())
}

fn builder(tls: Tls) -> LockManagerBuilder {
    LockManager::builder().connect_timeout(HANG).tls(tls)
}

async fn connect(tls: Tls, url: &str) -> LockManager {
    builder(tls)
        .connect(url)
        .await
        .expect("they trust each other")
}

async fn refused(tls: Tls, url: &str) -> LockError {
    refused_within(HANG, tls, url).await
}

async fn refused_within(connect_timeout: Duration, tls: Tls, url: &str) -> LockError {
    let builder = builder(tls).connect_timeout(connect_timeout);
    let result = timeout(HANG * 2, builder.connect(url)).await;
    let error = result.expect("no hang").expect_err("refused");
    let text = full_text(&error);
    assert!(!text.contains(SECRET), "{text}");
    error
}

async fn acquire(locks: &LockManager, options: LockOptions) -> LockGuard {
    timeout(HANG, locks.acquire("k", options))
        .await
        .expect("no hang")
        .expect("free, or soon")
}

/// Returns the number of clients that are connected to the port for TLS.
fn clients_over_tls(server: &RedisServer) -> usize {
    let list: String =
        redis::from_redis_value(server.cli(&["CLIENT", "LIST"])).expect("lines of text");
    let address = format!("laddr=127.0.0.1:{} ", server.tls_port());
    list.lines().filter(|line| line.contains(&address)).count()
}

#[tokio::test]
async fn independent_servers_are_reached_over_tls() {
    let certificates = Arc::new(Certificates::new());
    let servers: Vec<_> = (0..3).map(|_| start(&certificates)).collect();
    let locks = builder(trusting(&certificates))
        .quarantine(Duration::ZERO)
        .redlock(servers.iter().map(RedisServer::tls_url))
        .await
        .expect("they trust each other");
    let guard = acquire(&locks, patient()).await;
    eventually(HANG, "all of them have it", async || {
        servers.iter().all(|server| server.get("lock:k").is_some())
    })
    .await;
    assert!(servers.iter().all(|server| clients_over_tls(server) == 1));
    guard.release_held().await;
}

#[tokio::test]
async fn a_server_needs_a_valid_certificate_for_its_name_from_a_trusted_authority() {
    let (good, certificates) = server();
    let stranger = Certificates::new();
    invalid(
        &refused(trusting(&stranger), &good.tls_url()).await,
        "not signed by a trusted authority",
    );
    // The system does not trust the authority of a test either.
    invalid(
        &refused(Tls::new(), &good.tls_url()).await,
        "not signed by a trusted authority",
    );
    // Two authorities can be trusted, in one PEM or in two.
    let both = [stranger.authority(), certificates.authority()];
    connect(Tls::new().authority(both.concat()), &good.tls_url()).await;
    let [first, second] = both;
    connect(
        Tls::new().authority(first).authority(second),
        &good.tls_url(),
    )
    .await;
    for (certificates, says) in [
        (Certificates::expired(), "certificate expired"),
        (
            Certificates::for_hosts(&["elsewhere.internal"]),
            "not valid for name \"localhost\"",
        ),
    ] {
        let certificates = Arc::new(certificates);
        let bad = start(&certificates);
        let error = refused(trusting(&certificates), &bad.tls_url()).await;
        invalid(&error, says);
        invalid(&error, &bad.tls_url());
        assert_eq!(bad.calls("hello"), 0, "nothing was sent");
    }
}

#[tokio::test]
async fn the_systems_authorities_are_trusted_unless_others_are_given() {
    // This test starts itself again, in a process whose system trusts the authority of a test or does not.
    const URL: &str = "LOCK_TESTS_URL";
    if let Ok(url) = std::env::var(URL) {
        connect(Tls::new(), &url).await;
        LockManager::connect(&url).await.expect("the default");
        invalid(
            &refused(trusting(&Certificates::new()), &url).await,
            "not signed by a trusted authority",
        );
        return;
    }
    let (server, certificates) = server();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let system = folder.path().join("system.pem");
    for (trusted, passes) in [(&*certificates, true), (&Certificates::new(), false)] {
        std::fs::write(&system, trusted.authority()).expect("a file in it");
        let output = std::process::Command::new(std::env::current_exe().expect("a test"))
            .args([
                "--exact",
                "tls::the_systems_authorities_are_trusted_unless_others_are_given",
            ])
            .env(URL, server.tls_url())
            .env("SSL_CERT_FILE", &system)
            .output()
            .expect("it starts");
        assert_eq!(output.status.success(), passes, "{output:?}");
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        let is_refused = printed.contains("not signed by a trusted authority");
        assert_eq!(is_refused, !passes, "{printed}");
    }
}

#[tokio::test]
async fn a_certificate_may_be_issued_for_another_name_than_the_host() {
    let by_address = |server: &RedisServer| format!("rediss://127.0.0.1:{}", server.tls_port());
    let (good, certificates) = server();
    connect(trusting(&certificates), &by_address(&good)).await;
    let certificates = Arc::new(Certificates::for_hosts(&["elsewhere.internal"]));
    let elsewhere = start(&certificates);
    invalid(
        &refused(trusting(&certificates), &by_address(&elsewhere)).await,
        "its certificate is refused",
    );
    let named = |name| trusting(&certificates).server_name(name);
    connect(named("elsewhere.internal"), &by_address(&elsewhere)).await;
    // Then the certificate must be for that name.
    invalid(
        &refused(named("localhost"), &by_address(&elsewhere)).await,
        "not valid for name \"localhost\"",
    );
    invalid(
        &refused(named("no name at all"), &by_address(&elsewhere)).await,
        "no certificate can be issued for `no name at all`",
    );
}

#[tokio::test]
async fn a_server_that_requires_a_client_certificate_gets_it() {
    for version in ["TLSv1.2", "TLSv1.3"] {
        let certificates = Arc::new(Certificates::new());
        let server = RedisServer::builder()
            .tls(&certificates, AskClients::Always)
            .setting("tls-protocols", version)
            .start();
        let url = server.tls_url();
        let with = |client: KeyAndCertificate| {
            trusting(&certificates).client_certificate(client.certificate, client.key)
        };
        let locks = connect(with(certificates.client()), &url).await;
        acquire(&locks, patient()).await.release_held().await;
        // The refusal arrives within the handshake, or after it, depending on the version of TLS. The error is the same.
        let without = refused(trusting(&certificates), &url).await;
        invalid(
            &without,
            "refuses the client's certificate, or requires one",
        );
        let stranger = refused(with(Certificates::new().client()), &url).await;
        invalid(
            &stranger,
            "refuses the client's certificate, or requires one",
        );
    }
}

/// Starts a server that replies to its first client with these bytes and closes the connection. Returns its port.
fn replies_once(words: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it listens").port();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        let mut text = [0; 4_096];
        // The whole request is read, since closing a socket with unread bytes would reset the connection.
        assert!(client.read(&mut text).expect("a request") > 0);
        client.write_all(words).expect("the client listens");
    });
    port
}

#[tokio::test]
async fn a_port_without_tls_is_refused_in_bounded_time_and_gets_no_secret() {
    const CONNECT: Duration = Duration::from_secs(4);
    let refused = async |url: &str| refused_within(CONNECT, Tls::new(), url).await;
    let server = RedisServer::start();
    let started = Instant::now();
    let error = refused(&format!("rediss://:{SECRET}@localhost:{}", server.port())).await;
    // The bound covers one time-out, and a busy machine.
    assert!(started.elapsed() < CONNECT * 2, "{:?}", started.elapsed());
    let text = full_text(&error);
    assert!(text.contains("a port for TLS?"), "{text}");
    assert_eq!(server.calls("hello") + server.calls("auth"), 0);
    // One server replies with bytes that are not TLS, the next closes the connection, and the last never replies.
    let url = |port: u16| format!("rediss://localhost:{port}");
    invalid(
        &refused(&url(replies_once(b"-ERR unknown command\r\n"))).await,
        "it sends bytes that are not TLS",
    );
    unavailable(&refused(&url(replies_once(b""))).await, "a port for TLS?");
    unavailable(
        &refused(&url(FakeServer::silent().port())).await,
        "within 4s: is it a port for TLS?",
    );
}

#[tokio::test]
async fn a_client_without_tls_at_a_port_for_tls_is_told_so() {
    let (server, _) = server();
    let url = format!("redis://:{SECRET}@localhost:{}", server.tls_port());
    let error = LockManager::connect(&url).await.expect_err("refused");
    let text = full_text(&error);
    assert!(
        text.contains("`rediss://`") && !text.contains(SECRET),
        "{text}"
    );
}

#[tokio::test]
async fn tls_settings_with_a_url_without_tls_are_refused() {
    let (server, certificates) = server();
    for url in [server.url(), server.url().replace("redis", "valkey")] {
        invalid(
            &refused(trusting(&certificates), &url).await,
            "a url without TLS",
        );
    }
    // A unix socket never leaves the machine, so it needs no TLS.
    let socket = format!("redis+unix://{}", server.unix_socket().display());
    connect(trusting(&certificates), &socket).await;
    connect(trusting(&certificates), "memory://").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn thousands_of_requests_pass_a_connection_that_was_blocked() {
    const TASKS: usize = 5_000;
    let (server, certificates) = server();
    let proxy = Proxy::start(server.tls_port());
    let url = format!("rediss://localhost:{}", proxy.port());
    let locks = builder(trusting(&certificates))
        .command_timeout(SECOND * 20)
        .connect(&url)
        .await
        .expect("they trust each other");
    let before = proxy.connections();
    // Six megabytes are more than the buffers of the system hold.
    let key = |number: usize| format!("{number}:{:0500}", 0);
    let options = || LockOptions::new(HANG).wait(HANG).without_renewal();
    let (begun, acquired) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(Barrier::new(TASKS + 1)),
    );
    proxy.black_hole(Scope::Existing);
    let tasks: Vec<_> = (0..TASKS)
        .map(|number| {
            let (locks, begun, acquired) = (locks.clone(), begun.clone(), acquired.clone());
            tokio::spawn(async move {
                begun.fetch_add(1, Ordering::SeqCst);
                let guard = locks.acquire_free(key(number), options()).await;
                // The tasks meet before the checks of the test, and after them.
                acquired.wait().await;
                acquired.wait().await;
                guard.release_held().await;
            })
        })
        .collect();
    eventually!(HANG, "all have begun" => begun.load(Ordering::SeqCst) == TASKS);
    proxy.heal();
    timeout(HANG, acquired.wait()).await.expect("no hang");
    assert_eq!(server.keys("lock:*").len(), TASKS, "each has its own");
    timeout(HANG, acquired.wait()).await.expect("no hang");
    for task in tasks {
        let released = timeout(HANG, task).await.expect("no hang");
        released.expect("no panic");
    }
    assert!(server.keys("lock:*").is_empty());
    assert_eq!(proxy.connections(), before, "all on one connection");
}

#[tokio::test]
async fn a_malformed_certificate_or_key_is_refused_and_never_shown() {
    let certificates = Certificates::new();
    let client = certificates.client();
    let other = certificates.client();
    let cut = &client.key[..client.key.len() / 2];
    let (good, key) = (&*client.certificate, &*client.key);
    let bad = [
        (
            Tls::new().authority(""),
            "the authority cannot be used: it is not a PEM",
        ),
        (
            Tls::new().authority("nonsense"),
            "the authority cannot be used: it is not a PEM",
        ),
        (
            Tls::new().authority([0xff; 100]),
            "the authority cannot be used: it is not a PEM",
        ),
        (
            Tls::new().authority(key),
            "the authority cannot be used: it is not a PEM",
        ),
        (
            Tls::new().client_certificate(key, good),
            "the client certificate cannot be used: it is not a PEM",
        ),
        (
            Tls::new().client_certificate(good, good),
            "the client certificate's key cannot be used: it is not a PEM",
        ),
        (
            Tls::new().client_certificate(good, cut),
            "the client certificate's key cannot be used: it is not a PEM",
        ),
        (
            Tls::new().client_certificate(good, &*other.key),
            "cannot be used",
        ),
        (
            Tls::new().server_name(""),
            "no certificate can be issued for ``",
        ),
    ];
    for (tls, says) in bad {
        let shown = format!("{tls:?} {:?}", builder(tls.clone()));
        let error = refused(tls, "rediss://localhost:1").await;
        invalid(&error, says);
        for text in [full_text(&error), shown] {
            for line in key.lines().chain(other.key.lines()) {
                assert!(line.starts_with("-----") || !text.contains(line), "{text}");
            }
            assert!(!text.contains("PRIVATE"), "{text}");
        }
    }
}

/// Reads the log of the whole process, since the manager's thread logs, too.
#[tokio::test]
async fn no_log_line_has_a_password_or_a_private_key() {
    let log = Log::of_the_process();
    let certificates = Arc::new(Certificates::new());
    let server = RedisServer::builder()
        .tls(&certificates, AskClients::Always)
        .password(SECRET)
        .start();
    let client = certificates.client();
    let tls =
        trusting(&certificates).client_certificate(client.certificate.clone(), client.key.clone());
    let url = format!("rediss://:{SECRET}@localhost:{}", server.tls_port());
    let locks = connect(tls.clone(), &url).await;
    acquire(&locks, patient()).await.release_held().await;
    refused(trusting(&certificates), &url).await;
    refused(Tls::new(), &url).await;
    server.kill9();
    let error = locks
        .acquire("k", patient().no_wait())
        .await
        .expect_err("down");
    let logged = log.text();
    assert!(logged.contains("connected"), "{logged}");
    let text = format!("{logged} {} {locks:?} {tls:?}", full_text(&error));
    let secrets = client.key.lines().filter(|line| !line.starts_with('-'));
    for hidden in secrets.chain([SECRET, "PRIVATE KEY", "lc1:"]) {
        assert!(!text.contains(hidden), "{hidden} in {text}");
    }
}
