//! Connections that a user's own client of the `redis` crate opens.

use std::sync::Arc;

use lock_core::{
    LockError, LockManager, LockOptions,
    credentials::Credentials,
    redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, TlsCertificates},
};
use lock_tests::{
    AcquireFree as _, AskClients, Certificates, HANG, Proxy, RedisServer, ReleaseHeld as _, SECOND,
    Scope, assert_fails, connect, eventually, patient,
};

use crate::waiting::assert_granted_by_message;

async fn through(client: Client) -> LockManager {
    let manager = LockManager::builder().client(client).await;
    manager.expect("the server is up")
}

fn client(url: &str) -> Client {
    Client::open(url).expect("a url")
}

fn queue_length(server: &RedisServer) -> usize {
    server.keys("__lock_core__:waiters:*").len()
}

/// Makes a manager wait for a lock of another one.
async fn takes_turns(server: &RedisServer, locks: LockManager) {
    let other = connect(&server.url()).await;
    let guard = other.acquire_free("k", patient()).await;
    let waiting = tokio::spawn(async move { locks.acquire("k", patient()).await });
    eventually!(HANG, "it is in the queue" => queue_length(server) > 0);
    let token = guard.lease().fencing_token();
    guard.release_held().await;
    let guard = waiting.await.expect("no panic").expect("granted");
    assert!(guard.lease().fencing_token() > token);
    guard.lease().verify().await.expect("held");
    guard.release_held().await;
}

#[tokio::test]
async fn locks_use_the_user_and_the_database_of_the_client() {
    let server = RedisServer::builder()
        .acl("user me on >word ~* &* +@all")
        .start();
    let url = server.url_as("me", "word");
    let info = url.as_str().into_connection_info().expect("a url");
    let settings = info.redis_settings().clone().set_db(3);
    let locks = through(Client::open(info.set_redis_settings(settings)).expect("a client")).await;
    let guard = locks.acquire_free("k", patient()).await;
    let in_database = |number: &str| {
        server.cli(&[
            "EVAL",
            "redis.call('SELECT', ARGV[1]) return redis.call('EXISTS', 'lock:k')",
            "0",
            number,
        ])
    };
    assert_eq!(in_database("3"), lock_core::redis::Value::Int(1));
    assert_eq!(in_database("0"), lock_core::redis::Value::Int(0));
    guard.release_held().await;
    let refused = LockManager::builder()
        .client(client(&server.url_as("me", "hunter2")))
        .await
        .expect_err("a wrong password");
    assert!(matches!(refused, LockError::Invalid { .. }), "{refused:?}");
    let shown = format!("{refused} {refused:?}");
    assert!(
        shown.contains("user or password") && !shown.contains("hunter2"),
        "{shown}"
    );
}

#[tokio::test]
async fn grants_arrive_by_message() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let (locks, other) = (
        through(client(&proxy.url())).await,
        connect(&server.url()).await,
    );
    assert_granted_by_message(&server, &proxy, &other, &locks).await;
}

#[tokio::test]
async fn credentials_of_the_builder_take_precedence_over_those_of_the_client() {
    let server = RedisServer::builder()
        .acl("user me on >word ~* &* +@all")
        .start();
    let builder = LockManager::builder().credentials(Credentials::new("me", "word"));
    let locks = builder.client(client(&server.url_as("me", "old"))).await;
    let locks = locks.expect("the password is right");
    locks
        .acquire_free("k", patient())
        .await
        .release_held()
        .await;
}

#[tokio::test]
async fn a_broken_connection_is_replaced_through_the_client() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = through(client(&proxy.url())).await;
    let guard = locks.acquire_free("k", patient()).await;
    let before = proxy.connections();
    proxy.reset();
    guard.lease().verify().await.ok();
    eventually(HANG, "it is held through a new connection", async || {
        guard.lease().verify().await.is_ok()
    })
    .await;
    assert!(proxy.connections() > before);
    guard.release_held().await;
    drop(locks);
    eventually(HANG, "its connections are closed", async || {
        server.info("clients").contains("connected_clients:1\r")
    })
    .await;
}

#[tokio::test]
async fn a_half_open_connection_of_a_client_is_replaced() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = LockManager::builder().command_timeout(SECOND / 2);
    let locks = builder.client(client(&proxy.url())).await.expect("up");
    let guard = locks
        .acquire("k", LockOptions::new(SECOND * 60))
        .await
        .expect("free");
    proxy.black_hole(Scope::Existing);
    eventually(HANG, "it is held through a new connection", async || {
        guard.lease().verify().await.is_ok()
    })
    .await;
    guard.release_held().await;
}

#[tokio::test]
async fn the_certificates_of_the_client_are_checked() {
    let certificates = Arc::new(Certificates::new());
    let server = RedisServer::builder()
        .tls(&certificates, AskClients::Never)
        .start();
    let trusting = TlsCertificates {
        client_tls: None,
        root_cert: Some(certificates.authority().into_bytes()),
    };
    let client = Client::build_with_tls(server.tls_url(), trusting).expect("a client");
    let locks = LockManager::builder().client(client).await;
    takes_turns(&server, locks.expect("they trust each other")).await;
    let stranger = Arc::new(Certificates::new());
    let distrusting = TlsCertificates {
        client_tls: None,
        root_cert: Some(stranger.authority().into_bytes()),
    };
    let client = Client::build_with_tls(server.tls_url(), distrusting).expect("a client");
    let refused = LockManager::builder().client(client).await;
    let refused = refused.expect_err("signed by another authority");
    let cause = std::error::Error::source(&refused)
        .expect("a cause")
        .to_string();
    assert!(
        cause.contains("cannot connect to rediss://") && cause.contains("certificate"),
        "{cause}"
    );
}

#[tokio::test]
async fn a_client_of_a_unix_socket_works() {
    let server = RedisServer::start();
    let url = format!("unix://{}", server.unix_socket().display());
    takes_turns(&server, through(client(&url)).await).await;
}

#[tokio::test]
async fn independent_servers_are_reached_through_a_client() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let urls = || servers.iter().map(RedisServer::url);
    let builder = || {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let builder = LockManager::builder().quarantine(std::time::Duration::ZERO);
        builder.through(client("redis://elsewhere"), config)
    };
    let locks = builder().redlock(urls()).await.expect("they are up");
    let guard = locks.acquire_free("k", patient()).await;
    let other = builder().redlock(urls()).await.expect("they are up");
    let busy = other.try_acquire("k", patient()).await.expect("a reply");
    assert!(busy.is_none());
    guard.release_held().await;
    other
        .acquire_free("k", patient())
        .await
        .release_held()
        .await;
    let two = builder().redlock(urls().take(2)).await;
    assert_fails!(two, LockError::Invalid { .. });
}
