//! The key with which a manager tests its rights: that of the trial lock, or the user's `check_key`.

use lock_core::{LockError, LockManager, LockManagerBuilder};
use lock_tests::{
    AcquireFree as _, AfterLoss, Direction, Frames, HANG, Log, Proxy, RedisServer,
    ReleaseHeld as _, checked, connect, eventually, options, reason_of_refusal,
};

use crate::rights::{CLOCK, points_to_the_page, warnings_about};

/// Connects as a user with all commands, all channels, and these rights to keys.
async fn connect_with(
    server: &RedisServer,
    keys: &[&str],
    builder: LockManagerBuilder,
) -> Result<LockManager, LockError> {
    let rules = ["on", ">word", "resetkeys", "&*", "+@all"];
    server.cli(&[&["ACL", "SETUSER", "user"], &rules[..], keys].concat());
    builder.connect(&server.url_as("user", "word")).await
}

#[tokio::test]
async fn a_check_finds_a_revoked_right_and_leaves_no_key() {
    let server = RedisServer::start();
    let builder = LockManager::builder();
    let locks = connect_with(&server, &["~*"], builder).await;
    let locks = locks.expect("all rights");
    assert_eq!(checked(&locks).await.warnings, []);
    let change = |rules: &[&str]| server.cli(&[&["ACL", "SETUSER", "user"], rules].concat());
    let own = "~__lock_core__:*";
    for (revoked, named, granted) in [
        (&["-zpopmin"][..], "+zpopmin ~__lock_core__:*", "+zpopmin"),
        (&["resetchannels"], "+publish &__lock_core__:grants:*", "&*"),
        (&["resetkeys", "~lock:*"], "~__lock_core__:*", "~*"),
        (&["resetkeys", own, "%R~lock:*"], "~lock:*", "~*"),
        // A selector allows keys for one command only.
        (&["resetkeys", own, "(~lock:* +get)"], "~lock:*", "~*"),
    ] {
        change(revoked);
        let refused = reason_of_refusal(locks.check().await);
        assert!(refused.contains(named), "{revoked:?}: {refused}");
        assert!(points_to_the_page(&refused), "{revoked:?}: {refused}");
        change(&[granted]);
    }
    locks.check().await.expect("all rights");
    assert_eq!(
        server.keys("*"),
        [CLOCK],
        "released, and not left to expire"
    );
    let proxy = Proxy::start(server.port());
    let slow = connect(&proxy.url_as("user", "word")).await;
    proxy.lose(Direction::Replies, Frames::of("SET"), AfterLoss::Silence);
    let check = tokio::spawn(async move { slow.check().await });
    eventually!(HANG, "the trial lock is held" => server.keys("*") != [CLOCK]);
    check.abort();
    eventually!(HANG, "the key of the dropped check is gone" => server.keys("*") == [CLOCK]);
}

#[tokio::test]
async fn a_check_key_represents_the_keys_that_a_user_may_use() {
    let server = RedisServer::start();
    let with = |key: &str| {
        let builder = LockManager::builder().check_key(key);
        connect_with(&server, &["~lock:order:*", "~__lock_core__:*"], builder)
    };
    let refused = reason_of_refusal(with("invoice:1").await);
    assert!(points_to_the_page(&refused), "{refused}");
    let locks = with("order:1").await.expect("its own key");
    assert_eq!(checked(&locks).await.warnings, []);
    assert_eq!(server.keys("*"), [CLOCK]);
    // The key may be busy with a lock of this library, or of another one.
    let guard = locks.acquire_free("order:1", options()).await;
    locks.check().await.expect("a busy key is not an error");
    with("order:1").await.expect("a busy key is not an error");
    guard.lease().verify().await.expect("not taken away");
    guard.release_held().await;
    server.cli(&["SET", "lock:order:1", "theirs"]);
    let locks = with("order:1").await.expect("a busy key is not an error");
    locks.check().await.expect("a busy key is not an error");
    // The rights are tested although the key is busy.
    server.cli(&["ACL", "SETUSER", "user", "resetkeys", "~__lock_core__:*"]);
    let refused = reason_of_refusal(locks.check().await);
    assert!(refused.contains("~lock:*"), "{refused}");
    assert_eq!(server.get("lock:order:1").as_deref(), Some("theirs"));
}

#[tokio::test]
async fn a_check_key_that_holds_something_else_is_refused_and_left_alone() {
    let server = RedisServer::start();
    server.cli(&["RPUSH", "lock:list", "precious"]);
    let with = async |key: &str| {
        let builder = LockManager::builder().check_key(key);
        builder.connect(&server.url()).await
    };
    let says = "the check_key cannot be used: the key holds something that is not a lock";
    assert!(reason_of_refusal(with("list").await).contains(says));
    let locks = with("later").await.expect("free");
    server.cli(&["RPUSH", "lock:later", "precious"]);
    assert!(reason_of_refusal(locks.check().await).contains(says));
    for list in ["lock:list", "lock:later"] {
        assert_eq!(server.cli(&["LLEN", list]), redis::Value::Int(1));
    }
    // A manager in memory has no rights to check.
    let memory = LockManager::builder().check_key("").in_memory();
    memory.check().await.expect("nothing to refuse");
}

#[tokio::test]
async fn an_empty_prefix_without_a_check_key_causes_one_warning() {
    Log::of_the_process();
    let server = RedisServer::start();
    let unprefixed = || LockManager::builder().key_prefix("");
    let own = &["~__lock_core__:*"];
    let warned = || {
        warnings_about(&server)
            .matches("the key prefix is empty")
            .count()
    };
    let locks = connect_with(&server, own, unprefixed()).await;
    let health = checked(&locks.expect("a warning only")).await;
    let [warning] = &health.warnings[..] else {
        panic!("not one warning");
    };
    assert!(warning.text.contains("check_key"), "{warning}");
    let keys = server.keys("*");
    assert!(keys.iter().all(|key| key.starts_with("__lock_core__:")));
    let with_key = || unprefixed().check_key("orders");
    let refused = reason_of_refusal(connect_with(&server, own, with_key()).await);
    assert!(points_to_the_page(&refused), "{refused}");
    let locks = connect_with(&server, &["~orders", "~__lock_core__:*"], with_key()).await;
    let health = checked(&locks.expect("its own key")).await;
    assert_eq!(health.warnings, []);
    assert_eq!(warned(), 1);
}
