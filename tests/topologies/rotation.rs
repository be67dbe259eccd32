//! Passwords that are replaced while locks are held through sentinels or in a cluster.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use lock_core::{LockManager, LockManagerBuilder, credentials::Credentials};
use lock_tests::{
    AcquireFree as _, Cluster, HANG, RedisServer, ReleaseHeld as _, Sentinels, eventually, options,
};

/// The password of the user `app`.
type Password = Arc<Mutex<String>>;

fn builder(password: &Password) -> LockManagerBuilder {
    let password = password.clone();
    let provider = move || {
        let password = password.lock().expect("no panic").clone();
        let given = Credentials::new("app", password).valid_for(Duration::from_secs(2));
        async move { Ok::<_, io::Error>(given) }
    };
    LockManager::builder().credentials(provider)
}

/// Holds a lock while the password is replaced on all servers and every connection is closed.
async fn keeps_its_lease(locks: LockManager, servers: &[RedisServer], password: &Password) {
    let held = locks.acquire("held", options()).await;
    let held = held.expect("free");
    for number in 1..=2 {
        let next = format!("word{number}");
        for server in servers {
            server.cli(&["ACL", "SETUSER", "app", "resetpass", &format!(">{next}")]);
        }
        *password.lock().expect("no panic") = next;
        for server in servers {
            server.cli(&["CLIENT", "KILL", "USER", "app"]);
        }
        eventually(HANG, "it is held through new connections", async || {
            held.lease().verify().await.is_ok()
        })
        .await;
        for number in 0..5 {
            let key = format!("k{number}");
            let guard = locks.acquire_free(key, options()).await;
            guard.release_held().await;
        }
    }
    assert!(!held.lease().is_lost());
    held.release_held().await;
}

#[tokio::test]
async fn a_cluster_gets_the_next_password_on_each_node() {
    let cluster = Cluster::builder()
        .masters_alone(3)
        .acl("user app on >word0 ~* &* +@all")
        .start();
    let password = Password::new(Mutex::new("word0".to_owned()));
    let builder = builder(&password);
    let locks = builder.connect(&cluster.url_as("app", "old")).await;
    let locks = locks.expect("the nodes are up");
    keeps_its_lease(locks, cluster.nodes(), &password).await;
}

#[tokio::test]
async fn a_primary_behind_sentinels_gets_the_next_password() {
    let sentinels = Sentinels::builder()
        .user("app", "word0", "~* &* +@all")
        .start();
    let password = Password::new(Mutex::new("word0".to_owned()));
    let locks = builder(&password).connect(&sentinels.url()).await;
    let locks = locks.expect("the servers are up");
    keeps_its_lease(locks, sentinels.servers(), &password).await;
}
