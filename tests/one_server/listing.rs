//! Listing the locks that are held, by a scan of all keys.

use std::collections::{BTreeMap, BTreeSet};

use lock_core::{
    LockError, LockKey, LockManager,
    inspect::{Holder, LockInfo, LockMode},
};
use lock_tests::{
    AcquireFree as _, HANG, Proxy, RedisServer, ReleaseHeld as _, assert_fails, connect,
    eventually, options,
};

async fn listed(locks: &LockManager, prefix: &str) -> BTreeMap<String, LockInfo> {
    let mut list = locks.list(prefix);
    let mut all = BTreeMap::new();
    while let Some(lock) = list.next().await {
        let lock = lock.expect("a reply");
        all.insert(lock.key.to_string(), lock.info);
    }
    all
}

#[tokio::test]
async fn a_list_has_the_locks_with_the_prefix_and_nothing_else() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let alone = locks.acquire_free("a*:alone", options()).await;
    let shared = locks.acquire_free("a*:shared", options().shared()).await;
    let first = locks.acquire_free("a*:permits", options().permits(3)).await;
    let second = locks.acquire_free("a*:permits", options().permits(3)).await;
    let other = locks.acquire_free("ab:other", options()).await;
    server.cli(&["SET", "lock:a*:foreign", "x", "PX", "60000"]);
    server.cli(&["SADD", "lock:a*:set", "x"]);
    server.cli(&["SET", "a*:without the prefix", "x"]);
    let all = listed(&locks, "a*:").await;
    let shown = all.iter().map(|(key, info)| {
        let is_ours = matches!(info.holder, Holder::Ours(_));
        (key.as_str(), info.mode, info.holders, is_ours)
    });
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [
            ("a*:alone", LockMode::Exclusive, 1, true),
            ("a*:foreign", LockMode::Exclusive, 1, false),
            ("a*:permits", LockMode::Permits, 2, true),
            ("a*:shared", LockMode::Shared, 1, true),
        ]
    );
    assert_eq!(listed(&locks, "").await.len(), 5);
    for guard in [alone, shared, first, second, other] {
        guard.release_held().await;
    }
}

/// As the pattern of a `SCAN`, the prefix could match other keys.
#[tokio::test]
async fn a_prefix_with_the_characters_of_a_pattern_matches_itself_alone() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    for (prefix, other) in [
        ("a b", "a_b"),
        ("a\"b", "a_b"),
        ("a^[b]?", "a^b_"),
        ("a\\*", "a*"),
    ] {
        let wanted = locks.acquire_free(format!("{prefix}:k"), options()).await;
        let unwanted = locks.acquire_free(format!("{other}:k"), options()).await;
        let all = listed(&locks, prefix).await;
        assert_eq!(all.into_keys().collect::<Vec<_>>(), [format!("{prefix}:k")]);
        wanted.release_held().await;
        unwanted.release_held().await;
    }
}

/// Each `SCAN` reads about a hundred keys.
#[tokio::test]
async fn ten_thousand_locks_are_listed_by_pages() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    server.set_all((0..10_000).map(|key| format!("lock:k{key}")));
    let locks = connect(&proxy.url()).await;
    proxy.clear_log();
    assert_eq!(listed(&locks, "k").await.len(), 10_000);
    let scans = proxy.requests("SCAN");
    assert!((90..300).contains(&scans), "{scans}");
}

#[tokio::test]
async fn a_list_continues_after_a_dropped_call_and_after_an_error() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    let guard = locks.acquire_free("k", options()).await;
    let mut list = locks.list("");
    proxy.black_hole(lock_tests::Scope::All);
    let dropped = tokio::time::timeout(lock_tests::SECOND / 10, list.next()).await;
    assert!(dropped.is_err(), "no reply can arrive");
    let failed = list.next().await.expect("it has not ended");
    assert_fails!(failed, LockError::Unavailable { .. });
    proxy.heal();
    eventually(HANG, "the server replies again", async || {
        let mut again = locks.list("");
        matches!(again.next().await, Some(Ok(_)))
    })
    .await;
    let found = list.next().await.expect("one lock").expect("a reply");
    assert_eq!(found.key, LockKey::new("k"));
    assert!(list.next().await.is_none());
    guard.release_held().await;
}

/// As after a fail-over, the new server has the same locks in another order.
#[tokio::test]
async fn a_list_is_complete_even_if_another_server_takes_over() {
    let (first, second) = (RedisServer::start(), RedisServer::start());
    for server in [&first, &second] {
        server.set_all((0..2_000).map(|key| format!("lock:k{key}")));
    }
    let proxy = Proxy::start(first.port());
    let locks = connect(&proxy.url()).await;
    let mut list = locks.list("");
    let mut found = BTreeSet::new();
    for _ in 0..1_000 {
        let lock = list.next().await.expect("half of them");
        found.insert(lock.expect("a reply").key);
    }
    proxy.redirect_to(second.port());
    proxy.reset();
    // A call on the connection that breaks may fail; the next one continues.
    let mut failed = 0;
    while let Some(lock) = list.next().await {
        match lock {
            Ok(lock) => drop(found.insert(lock.key)),
            Err(error) => {
                failed += 1;
                assert!(failed < 10, "{error:?}");
            }
        }
    }
    assert_eq!(found.len(), 2_000);
}
