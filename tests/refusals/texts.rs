//! The error texts that need a server, and the lines of the log, with the situations that provoke them.
//!
//! All other error texts are in `in_process/texts.rs`, whose header has the reason for these tables.

use std::{collections::BTreeMap, time::Duration};

use lock_core::{LockManager, OnceOptions};
use lock_tests::{
    AcquireFree as _, HANG, Log, RedisServer, ReleaseHeld as _, SECOND, connect,
    error_texts::{compare, refused},
    eventually, options,
};

#[tokio::test]
async fn errors_of_servers_have_these_texts() {
    let server = RedisServer::start();
    let place = format!("127.0.0.1:{}", server.port());
    let (url, labelled) = (server.url(), LockManager::builder().label("web-1"));
    let labelled = labelled.connect(&url).await.expect("up");
    let _held = labelled.acquire_free("held", options()).await;
    server.cli(&["SET", "lock:foreign", "theirs"]);
    let locks = connect(&url).await;
    let tried = async |key: &str| refused(locks.acquire(key, options().no_wait()).await);
    let dead = [
        "redis://127.0.0.1:1",
        "redis://127.0.0.1:2",
        "redis://127.0.0.1:3",
    ];
    let voting = LockManager::builder().connect_lazily().redlock(dead).await;
    let voting = voting.expect("lazily");
    let rows = [
        (
            "held by another process",
            tried("held").await,
            "the lock `held` is busy: the process web-1 holds it",
        ),
        (
            "taken by another client without an expiry",
            tried("foreign").await,
            "the lock `foreign` is busy and has no expiry, because another client took it without one; `force_release` frees it",
        ),
        (
            "a shared lock on servers that vote",
            refused(voting.acquire("k", options().shared()).await),
            "the lock `k` cannot be used: the lock is requested shared: several independent servers (Redlock) can agree only on a \
             single holder of a lock, not on several or on the result of a run: acquire it exclusively, or use a manager on one \
             primary, sentinels or a cluster for this lock",
        ),
        (
            "a list of the locks on servers that vote",
            refused(voting.list("").next().await.expect("an error")),
            "the locks of several independent servers cannot be listed together: connect to one of them, and list its locks",
        ),
        (
            "a server in the place of a sentinel",
            refused(LockManager::connect(&format!("redis+sentinel://{place}/service")).await),
            "redis://PLACE is not a sentinel, because it does not know the command SENTINEL: name the sentinels (port 26379 by \
             default), or write a `redis://` url for a server without sentinels",
        ),
        (
            "a server in the place of a cluster node",
            refused(LockManager::connect(&format!("redis+cluster://{place}")).await),
            "redis://PLACE is not a node of a cluster: use a `redis://` url",
        ),
    ];
    compare(&rows.map(|(situation, provoked, wanted)| {
        (situation, provoked.replace(&place, "PLACE"), wanted)
    }));
}

/// Each line of the log, with the situation that provokes it. The keys distinguish them from the lines of other tests.
const LINES: [(&str, &str); 8] = [
    (
        "a manager for a url of memory",
        "INFO lock_core::manager::builder::connecting: connected to `memory://`: its locks exclude only tasks of this process",
    ),
    (
        "a lease that was taken away",
        "lease lost key=texts:lost reason=the key is gone or has another holder",
    ),
    ("a busy lock", "not acquired key=texts:lost"),
    (
        "a template that was passed as a key",
        "the key has braces, but a text that is passed by hand is not a template, so every call takes this one key: write \
         `key!(\"…\")` around it, or double the braces there if they are meant literally key=texts:{id}",
    ),
    (
        "a value of a run that JSON cannot express",
        "the value of a run cannot be serialized as JSON: a repeat does not get it",
    ),
    (
        "a repeat of a run",
        "answered with a stored result key=texts:once",
    ),
    (
        "a shutdown while a lock is held",
        "shut down while locks were still held; they end with their ttl",
    ),
    (
        "a server that is down when a manager connects lazily",
        "the backend cannot be reached yet: retrying in the background",
    ),
];

#[tokio::test]
async fn the_log_has_these_lines() {
    let log = Log::of_the_process();
    let locks = LockManager::connect("memory://").await.expect("in memory");
    let lost = locks.acquire_free("texts:lost", options()).await;
    let busy = locks.acquire("texts:lost", options().no_wait()).await;
    busy.expect_err("held");
    locks.force_release("texts:lost").await.expect("held");
    lost.lease().lost().await;
    let literal = locks.acquire_free("texts:{id}", options()).await;
    literal.release_held().await;
    let once = || OnceOptions::keep(SECOND * 60);
    let odd = async |_| Ok::<_, String>(BTreeMap::from([(vec![1], 1)]));
    let odd = locks.run_once("texts:odd", once(), odd).await;
    odd.expect("free").expect("runs");
    for _ in 0..2 {
        let body = async |_| Ok::<_, String>(7);
        let ran = locks.run_once("texts:once", once(), body).await;
        ran.expect("free").expect("runs");
    }
    let held = locks.acquire_free("texts:held", options()).await;
    locks.shutdown(Duration::ZERO).await;
    drop(held);
    let lazily = LockManager::builder().connect_lazily();
    let _lazy = lazily.connect("redis://127.0.0.1:1").await.expect("lazily");
    for (situation, line) in LINES {
        eventually(HANG, situation, async || log.text().contains(line)).await;
    }
}
