//! The lines of the log, with the situations that provoke them. `in_process/texts.rs` says what such tables are for.

use std::{collections::BTreeMap, time::Duration};

use lock_core::{LockManager, OnceOptions};
use lock_tests::{AcquireFree as _, HANG, Log, ReleaseHeld as _, SECOND, eventually, options};

/// Each line of the log, with the situation that provokes it. A line without a key may come from another test of this process.
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
    let before = log.text().len();
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
        eventually(HANG, situation, async || {
            log.text()[before..].contains(line)
        })
        .await;
    }
}
