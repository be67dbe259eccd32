//! A user's own client opens the connections to the servers that a url, a sentinel or a cluster node names.

use std::sync::Arc;

use lock_core::{
    LockError, LockManager,
    redis::{AsyncConnectionConfig, Client, TlsCertificates},
};
use lock_tests::{
    AcquireFree as _, Certificates, Cluster, HANG, ReleaseHeld as _, SECOND, Sentinels, eventually,
    invalid, patient,
};

use crate::cluster::keys_of;

/// Returns a client that trusts these certificates. No server has its address.
fn trusting(certificates: &Certificates) -> Client {
    let trusted = TlsCertificates {
        client_tls: None,
        root_cert: Some(certificates.authority().into_bytes()),
    };
    Client::build_with_tls("rediss://localhost:1", trusted).expect("a client")
}

async fn connect_through(client: Client, url: &str) -> Result<LockManager, LockError> {
    let builder = LockManager::builder()
        .through(client, AsyncConnectionConfig::new())
        // Long, for several TLS handshakes in an unoptimised build on a busy machine.
        .command_timeout(SECOND * 20)
        .connect_timeout(HANG);
    builder.connect(url).await
}

#[tokio::test]
async fn all_nodes_of_a_cluster_are_reached_with_the_clients_certificates() {
    let certificates = Arc::new(Certificates::new());
    let cluster = Cluster::builder()
        .masters_alone(3)
        .password("hunter2")
        .tls(&certificates)
        .start();
    let url = cluster.url();
    let one = connect_through(trusting(&certificates), &url).await;
    let other = connect_through(trusting(&certificates), &url).await;
    let (one, other) = (one.expect("it is trusted"), other.expect("it is trusted"));
    for master in cluster.masters() {
        let key = keys_of(&cluster, master, "k", 1).remove(0);
        let guard = one.acquire_free(&*key, patient()).await;
        let (waiting, wanted) = (other.clone(), key.clone());
        let waiting = tokio::spawn(async move { waiting.acquire(wanted, patient()).await });
        eventually(HANG, "it is in the queue", async || {
            !master.keys("__lock_core__:*waiters:*").is_empty()
        })
        .await;
        let token = guard.lease().fencing_token();
        guard.release_held().await;
        let guard = waiting.await.expect("no panic").expect("granted");
        assert!(guard.lease().fencing_token() > token);
        guard.release_held().await;
    }
    let stranger = trusting(&Certificates::new());
    let refused = connect_through(stranger, &url).await;
    let refused = format!("{:?}", refused.expect_err("signed by another authority"));
    assert!(refused.contains("certificate"), "{refused}");
    assert!(!refused.contains("hunter2"), "{refused}");
}

#[tokio::test]
async fn sentinels_and_each_primary_are_reached_with_the_clients_certificates() {
    let certificates = Arc::new(Certificates::new());
    let sentinels = Sentinels::builder()
        .password("hunter2")
        .sentinel_password("watch")
        .tls(&certificates)
        .start();
    let locks = connect_through(trusting(&certificates), &sentinels.url()).await;
    let locks = locks.expect("they are trusted");
    let guard = locks.acquire_free("k", patient()).await;
    guard.release_held().await;
    let killed = sentinels.kill_primary();
    sentinels.failed_over(killed);
    eventually(
        HANG,
        "locks are acquired on the new primary",
        async || match locks.acquire("k", patient()).await {
            Ok(guard) => guard.release().await.is_ok(),
            Err(_) => false,
        },
    )
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_fit_the_url_is_refused() {
    let plain = |url: &str| Client::open(url).expect("a url");
    let over_tls = trusting(&Certificates::new());
    for (client, url) in [
        (plain("redis://h"), "rediss+cluster://a,b"),
        (over_tls, "redis+cluster://a,b"),
        (plain("redis://:hunter2@h"), "redis+sentinel://a/m"),
        (plain("redis://h/3"), "redis://a"),
        (plain("unix:///s"), "redis://a"),
    ] {
        let error = connect_through(client, url).await.expect_err(url);
        invalid(&error, "does not fit the client");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
