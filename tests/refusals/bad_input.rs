//! Wrong input gets a clear error, in bounded time and without a secret. The texts of malformed urls are tested in lock-core, and
//! those of keys and options in `in_process/texts.rs`.

use std::time::Duration;

use lock_core::{LeaseLost, LockError, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, FakeServer, HANG, Log, Proxy, RedisServer, ReleaseHeld as _, connect,
    eventually, invalid, unavailable,
};
use tokio::time::timeout;

const SECRET: &str = "hunter2";

async fn refused(url: &str) -> LockError {
    let connecting = LockManager::builder()
        .connect_timeout(HANG)
        .command_timeout(HANG)
        .connect(url);
    let result = timeout(HANG * 2, connecting).await.expect("never hangs");
    let error = result.expect_err("refused");
    let text = full_text(&error);
    assert!(!text.contains(SECRET), "{text}");
    error
}

/// Returns everything that a program could print of an error.
pub(crate) fn full_text(error: &LockError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text = format!("{text} {inner} {inner:?}");
        source = inner.source();
    }
    text
}

#[tokio::test]
async fn a_bad_url_in_a_list_is_named_by_its_position() {
    let list = "redis://127.0.0.1:1,redis://:hunter2@127.0.0.1:x,redis://127.0.0.1:3";
    let error = refused(list).await;
    invalid(&error, "url 2 of the list");
    invalid(&error, "malformed");
}

#[tokio::test]
async fn an_unreachable_server_is_unavailable() {
    let gone = RedisServer::start();
    let url = gone.url_as("user", SECRET);
    drop(gone);
    unavailable(&refused(&url).await, "cannot connect to redis://127.0.0.1:");
    unavailable(
        &refused("redis://:hunter2@no-such-host.invalid/").await,
        "cannot connect to",
    );
    unavailable(
        &refused("redis+unix:///no/such/socket?pass=hunter2").await,
        "cannot connect to redis+unix:///no/such/socket",
    );
}

#[tokio::test]
async fn a_server_of_another_protocol_is_refused() {
    let garbage = |_: &[String]| lock_tests::Reply::Bytes(b"\0\xff\x17\r\n\x80\r\n".into());
    for server in [FakeServer::http(), FakeServer::start(garbage)] {
        invalid(
            &refused(&server.url()).await,
            "does not speak the Redis protocol",
        );
    }
    let server = FakeServer::start(|_| lock_tests::Reply::line(":42"));
    invalid(
        &refused(&server.url()).await,
        "does not speak the Redis protocol",
    );
}

#[tokio::test]
async fn a_wrong_or_missing_password_is_refused_and_never_shown() {
    let server = RedisServer::builder().password("correct").start();
    let base = format!("127.0.0.1:{}", server.port());
    for url in [
        format!("redis://:{SECRET}@{base}"),
        format!("redis://nobody:{SECRET}@{base}"),
        format!("redis://{base}"),
    ] {
        invalid(&refused(&url).await, "refuses the user or password");
    }
    let locks = LockManager::connect(&server.url())
        .await
        .expect("the right password");
    let shown = format!("{locks:?}");
    assert!(!shown.contains("correct"), "{shown}");
    assert!(shown.contains(&base), "{shown}");
}

#[tokio::test]
async fn a_bad_label_is_refused_before_anything_is_sent() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let url = proxy.url();
    let builder = || {
        LockManager::builder()
            .label("web\r\nFLUSHALL")
            .connect_lazily()
    };
    let client = lock_core::redis::Client::open(&*url).expect("a url");
    let voting = [&*url, "redis://127.0.0.1:1", "redis://127.0.0.1:2"];
    for refused in [
        builder().connect(&url).await,
        builder().client(client).await,
        builder().redlock(voting).await,
    ] {
        invalid(&refused.expect_err("a bad label"), "the character '\\r'");
    }
    assert_eq!(proxy.connections(), 0);
}

#[tokio::test]
async fn a_bad_key_or_option_is_refused_before_anything_is_sent() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    let unprefixed = LockManager::builder().key_prefix("");
    let unprefixed = unprefixed.connect(&proxy.url()).await.expect("up");
    proxy.clear_log();
    let good = LockOptions::default;
    for (key, options, says) in [
        ("", good(), "empty"),
        ("k", LockOptions::new(Duration::ZERO), "ttl is 0ns"),
        ("k", LockOptions::new(Duration::MAX), "24 h"),
        ("k", good().min_hold(Duration::MAX), "min_hold is"),
    ] {
        let acquired = locks.acquire(key, options.clone()).await;
        invalid(&acquired.expect_err("bad input"), says);
        let ran = locks.run(key, options, async |_| {}).await;
        invalid(&ran.expect_err("bad input"), says);
    }
    let inspected = locks.inspect("").await;
    invalid(&inspected.expect_err("bad input"), "empty");
    let forced = locks.force_release("").await;
    invalid(&forced.expect_err("bad input"), "empty");
    let reserved = unprefixed.acquire("__lock_core__:clock", good()).await;
    invalid(&reserved.expect_err("bad input"), "reserved");
    let sent = proxy.requests("SET") + proxy.requests("EVALSHA");
    assert_eq!(sent, 0, "{:?}", proxy.log());
}

#[tokio::test]
async fn every_text_can_be_a_key_and_reaches_the_server_byte_for_byte() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let keys = [
        "*",
        "a b",
        "\r\nDEL x\r\n",
        "\0",
        "ключ",
        "{a}{b}",
        "\"]] .. redis.call('FLUSHALL')",
        &"é".repeat(256),
    ];
    for key in keys {
        let guard = locks.acquire_free(key, LockOptions::default()).await;
        assert!(server.get(&format!("lock:{key}")).is_some(), "{key:?}");
        guard.release_held().await;
        assert!(server.get(&format!("lock:{key}")).is_none(), "{key:?}");
    }
}

#[tokio::test]
async fn a_key_that_holds_something_else_is_left_alone() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    server.cli(&["RPUSH", "lock:k", "precious"]);
    let options = || LockOptions::default().wait_forever();
    for result in [
        locks.acquire("k", options()).await.map(drop),
        locks.try_acquire("k", options()).await.map(drop),
        locks.force_release("k").await,
        locks.inspect("k").await.map(drop),
    ] {
        let error = result.expect_err("refused");
        invalid(&error, "holds something that is not a lock");
        assert_eq!(error.key().map(lock_core::LockKey::as_str), Some("k"));
    }
    assert_eq!(server.cli(&["LLEN", "lock:k"]), redis::Value::Int(1));
}

#[tokio::test]
async fn a_lease_whose_key_becomes_something_else_is_lost() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let guard = locks
        .acquire_free("k", LockOptions::new(Duration::from_secs(6)))
        .await;
    server.cli(&["DEL", "lock:k"]);
    server.cli(&["RPUSH", "lock:k", "precious"]);
    let lost = timeout(HANG, guard.lease().lost()).await;
    assert_eq!(lost.expect("noticed"), LeaseLost::TakenAway);
    assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
    assert_eq!(server.cli(&["LLEN", "lock:k"]), redis::Value::Int(1));
}

#[tokio::test]
async fn a_foreign_lock_without_an_expiry_is_busy_until_it_is_forced() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    server.cli(&["SETNX", "lock:k", "theirs"]);
    let error = locks
        .acquire("k", LockOptions::default().no_wait())
        .await
        .expect_err("held");
    assert!(
        matches!(
            error,
            LockError::Busy {
                retry_after: None,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains("no expiry"), "{error}");
    let info = locks.inspect("k").await.expect("works").expect("held");
    assert_eq!(
        (info.remaining, info.holder),
        (None, lock_core::inspect::Holder::Foreign)
    );
    locks.force_release("k").await.expect("works");
    assert!(
        locks
            .try_acquire("k", LockOptions::default())
            .await
            .expect("a reply")
            .is_some()
    );
}

#[tokio::test]
async fn a_reply_that_quotes_the_password_is_not_shown() {
    // This is the reply from a server on which HELLO was renamed.
    let server = FakeServer::start(|request| {
        let arguments = request[1..].join("' '");
        lock_tests::Reply::line(&format!(
            "-ERR unknown command '{}', with args beginning with: '{arguments}'",
            request[0]
        ))
    });
    let url = format!("redis://:{SECRET}@127.0.0.1:{}", server.port());
    refused(&url).await;
    refused(&format!("{url}/?protocol=resp3")).await;
}

/// Reads the log of the whole process, since the manager's thread logs, too.
#[tokio::test]
async fn no_log_line_has_an_owner_token_or_a_password() {
    let log = Log::of_the_process();
    let server = RedisServer::builder().password(SECRET).start();
    let locks = connect(&server.url()).await;
    let guard = locks
        .acquire_free("hidden:k", LockOptions::new(Duration::from_secs(4)))
        .await;
    let token = server.get("lock:hidden:k").expect("held");
    let secret = token.rsplit(':').next().expect("a secret").to_owned();
    assert!(secret.len() >= 32, "{token}");
    // A renewal, a loss, a failed release and an acquire against a server that is down.
    server.cli(&["SET", "lock:hidden:k", "another's"]);
    guard.lease().lost().await;
    drop(guard);
    let held = locks
        .acquire_free("hidden:other", LockOptions::new(Duration::from_secs(4)))
        .await;
    server.kill9();
    let error = locks
        .acquire("hidden:third", LockOptions::default().no_wait())
        .await
        .expect_err("down");
    held.lease().lost().await;
    drop(held);
    let is_of_this_test =
        |line: &str| line.contains("a release got no reply") && line.contains("key=lock:hidden:");
    eventually!(HANG, "the failed release is logged" => log.text().lines().any(is_of_this_test));
    let text = log.text() + &full_text(&error) + &format!("{locks:?}");
    assert!(text.contains("lease lost key=hidden:k"), "{text}");
    for hidden in [SECRET, &secret, "lc1:"] {
        assert!(!text.contains(hidden), "{hidden} in {text}");
    }
}
