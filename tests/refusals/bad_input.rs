//! Wrong input gets a clear error, in bounded time and without a secret.

use std::time::Duration;

use lock_core::{LockError, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, FakeServer, HANG, Log, Proxy, RedisServer, ReleaseHeld as _, connect,
    eventually, invalid, unavailable,
};
use tokio::time::timeout;

const SECRET: &str = "hunter2";

async fn refused(url: &str) -> LockError {
    let connecting = LockManager::builder()
        .connect_timeout(Duration::from_millis(500))
        .command_timeout(Duration::from_millis(500))
        .connect(url);
    let result = timeout(HANG, connecting).await.expect("never hangs");
    let error = result.expect_err("must be refused");
    let text = full_text(&error);
    assert!(!text.contains(SECRET), "{text}");
    error
}

/// Everything that a program could print of an error.
fn full_text(error: &LockError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text = format!("{text} {inner} {inner:?}");
        source = inner.source();
    }
    text
}

#[tokio::test]
async fn a_malformed_url_says_how_to_write_it() {
    for url in ["localhost", "127.0.0.1:6379", "redis//:hunter2@host"] {
        invalid(&refused(url).await, "no scheme");
    }
    for (url, says) in [
        ("", "is the variable set?"),
        (" redis://:hunter2@host", "begins with the character ' '"),
        ("'redis://:hunter2@host'", "begins with the character '\\''"),
        (
            "http://user:hunter2@host/",
            "not a scheme that lock-core knows",
        ),
        ("redis://:hunter2@", "malformed"),
        ("redis://:hunter2@host:65536", "malformed"),
        ("redis://:hunter2 @host", "a space"),
        ("redis://:hun/hunter2@host", "an `@` follows the host"),
        (
            "redis://:hunter2@host/no-number",
            "the database is not a number",
        ),
        ("redis+sentinel://:hunter2@a,b:x/service", "malformed"),
        ("redis+cluster://:hunter2@a,,b", "malformed"),
    ] {
        invalid(&refused(url).await, says);
    }
    let list = "redis://127.0.0.1:1,redis://:hunter2@127.0.0.1:x,redis://127.0.0.1:3";
    let error = refused(list).await;
    invalid(&error, "url 2 of the list");
    invalid(&error, "malformed");
    for list in [
        "memory://,redis://127.0.0.1:1",
        "redis://127.0.0.1:1, memory://",
    ] {
        invalid(
            &refused(list).await,
            "`memory://` cannot be one of several servers",
        );
    }
}

/// If a part of the url were ignored, two services with the same url could use two databases.
#[tokio::test]
async fn what_a_url_says_is_obeyed_or_refused_by_name() {
    for scheme in [
        "redis://host",
        "valkey://host",
        "redis+unix:///socket",
        "redis+cluster://a,b",
    ] {
        for (rest, says) in [
            (
                "?dbb=3",
                "\"dbb\" is not known here; the known ones are `db`, `protocol`",
            ),
            ("?timeout=hunter2", "\"timeout\" is not known here"),
            ("?db=3&db=4", "`db` is given twice"),
            ("?db=hunter2", "the database is not a number"),
            ("?protocol=4", "`protocol` is `2` or `3`"),
            ("#insecure", "certificates are always checked"),
            ("?db=0#hunter2", "a fragment"),
        ] {
            invalid(&refused(&format!("{scheme}{rest}")).await, says);
        }
    }
    for (url, says) in [
        ("redis://host/1?db=2", "two databases"),
        ("redis://host?password=hunter2", "\"password\" is not known"),
        ("redis+cluster://a,b?db=3", "only the database 0"),
        ("redis+sentinel://a,b/service/1?db=2", "two databases"),
        ("redis+sentinel://a,b/service?dbb=2", "`sentinel_user`"),
        ("redis://a,redis://b?dbb=1,redis://c", "url 2 of the list"),
        ("redis://a,b", "several hosts"),
    ] {
        invalid(&refused(url).await, says);
    }
}

#[tokio::test]
async fn two_urls_that_name_one_database_exclude_each_other() {
    let server = RedisServer::start();
    let socket = server.unix_socket();
    let urls = [
        format!("{}/3", server.url()),
        format!("{}?db=3", server.url()),
        format!("{}/?db=3", server.url()),
        format!("{}/3?db=3", server.url().replace("redis:", "valkey:")),
        format!("redis+unix://{}?db=3", socket.display()),
    ];
    let mut managers = Vec::new();
    for url in &urls {
        managers.push(LockManager::connect(url).await.expect(url));
    }
    for (holder, url) in managers.iter().zip(&urls) {
        let guard = holder
            .acquire("k", LockOptions::default())
            .await
            .expect(url);
        for (other, tried) in managers.iter().zip(&urls) {
            let busy = other.acquire("k", LockOptions::default().no_wait()).await;
            // The holder's own manager is among these: its tasks exclude each other, too.
            assert!(
                busy.is_err_and(|error| error.is_busy()),
                "{url} and {tried}"
            );
        }
        guard.release_held().await;
    }
    let default = connect(&server.url()).await;
    let _held = managers[0].acquire_free("k", LockOptions::default()).await;
    let elsewhere = default.try_acquire("k", LockOptions::default()).await;
    assert!(
        elsewhere.expect("up").is_some(),
        "another database is another world"
    );
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
async fn a_server_that_never_answers_is_unavailable_in_bounded_time() {
    let server = FakeServer::silent();
    unavailable(&refused(&server.url()).await, "within 500ms");
}

#[tokio::test]
async fn a_server_that_is_not_redis_is_named_so() {
    for server in [FakeServer::http(), FakeServer::garbage()] {
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
async fn a_wrong_or_missing_password_is_named_so() {
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
async fn a_database_that_does_not_exist_is_named_so() {
    let server = RedisServer::start();
    invalid(
        &refused(&format!("redis://:@127.0.0.1:{}/99", server.port())).await,
        "refuses",
    );
}

#[tokio::test]
async fn a_bad_setting_is_refused_before_anything_is_connected() {
    let bad = [
        (LockManager::builder().ttl(Duration::ZERO), "ttl is 0ns"),
        (
            LockManager::builder().ttl(Duration::from_secs(86_401)),
            "24 h",
        ),
        (LockManager::builder().wait(Duration::MAX), "wait_forever"),
        (
            LockManager::builder().command_timeout(Duration::ZERO),
            "command_timeout is 0ns",
        ),
        (
            LockManager::builder().connect_timeout(Duration::MAX),
            "connect_timeout is",
        ),
        (
            LockManager::builder().polling_pause(Duration::ZERO),
            "polling_pause is 0ns",
        ),
        (
            LockManager::builder().key_prefix("x".repeat(257)),
            "the key prefix has 257 bytes",
        ),
    ];
    for (builder, says) in bad {
        let error = builder
            .connect("memory://")
            .await
            .expect_err("must be refused");
        invalid(&error, says);
    }
}

#[tokio::test]
async fn a_bad_label_is_refused_before_anything_is_sent() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let url = proxy.url();
    for (label, says) in [
        (String::new(), "the label is empty: name this process"),
        ("x".repeat(64), "64 characters, but at most 63"),
        ("web 1".to_owned(), "the character ' '"),
        ("web\r\nFLUSHALL".to_owned(), "the character '\\r'"),
        ("\"web\"".to_owned(), "the character '\"'"),
        (
            "wéb".to_owned(),
            "choose letters, digits and ASCII punctuation",
        ),
    ] {
        let builder = || LockManager::builder().label(&*label).connect_lazily();
        let client = lock_core::redis::Client::open(&*url).expect("a url");
        let refused = [
            builder().connect(&url).await,
            builder().client(client).await,
            builder()
                .redlock([&*url, "redis://127.0.0.1:1", "redis://127.0.0.1:2"])
                .await,
        ];
        for error in refused.map(|refused| refused.expect_err("must be refused")) {
            invalid(&error, says);
        }
    }
    assert_eq!(proxy.connections(), 0);
    let longest = LockManager::builder()
        .label("x".repeat(63))
        .connect(&url)
        .await;
    longest
        .expect("accepted")
        .acquire_free("k", LockOptions::default())
        .await
        .release_held()
        .await;
}

#[tokio::test]
async fn a_bad_key_or_option_is_refused_without_a_message_to_the_server() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let good = || LockOptions::new(Duration::from_secs(10));
    let before = server.calls("evalsha");
    let bad = [
        ("", good(), "empty"),
        (&*"k".repeat(513), good(), "513 bytes"),
        ("k", LockOptions::new(Duration::ZERO), "ttl is 0ns"),
        (
            "k",
            LockOptions::new(Duration::from_millis(99)),
            "must be at least 100ms",
        ),
        ("k", LockOptions::new(Duration::from_secs(86_401)), "24 h"),
        ("k", LockOptions::new(Duration::MAX), "24 h"),
        ("k", good().wait(Duration::MAX), "wait_forever"),
        ("k", good().max_hold(Duration::ZERO), "max_hold is 0ns"),
        ("k", good().min_hold(Duration::MAX), "min_hold is"),
    ];
    for (key, options, says) in bad {
        invalid(
            &locks
                .acquire(key, options.clone())
                .await
                .expect_err("must be refused"),
            says,
        );
        invalid(
            &locks
                .run(key, options, async |_| {})
                .await
                .expect_err("must be refused"),
            says,
        );
    }
    for key in ["", &*"k".repeat(513)] {
        assert!(matches!(
            locks.inspect(key).await,
            Err(LockError::Invalid { .. })
        ));
        assert!(matches!(
            locks.force_release(key).await,
            Err(LockError::Invalid { .. })
        ));
    }
    assert_eq!(server.calls("evalsha"), before);
    let unprefixed = LockManager::builder()
        .key_prefix("")
        .connect(&server.url())
        .await
        .expect("the server is up");
    let error = unprefixed
        .acquire("__lock_core__:clock", good())
        .await
        .expect_err("must be refused");
    invalid(&error, "reserved");
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
        let error = result.expect_err("must be refused");
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
        .acquire_free("k", LockOptions::new(Duration::from_secs(3)))
        .await;
    server.cli(&["DEL", "lock:k"]);
    server.cli(&["RPUSH", "lock:k", "precious"]);
    timeout(HANG, guard.lease().lost()).await.expect("noticed");
    assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
    assert_eq!(server.cli(&["LLEN", "lock:k"]), redis::Value::Int(1));
}

#[tokio::test]
async fn a_foreign_lock_without_an_expiry_is_busy_with_that_word() {
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
async fn a_server_that_answers_nonsense_is_unavailable() {
    // The reply to every request is a string, where numbers are expected.
    let server = FakeServer::start(|request| {
        lock_tests::Reply::line(match request[0].as_str() {
            "PING" => "+PONG",
            "HELLO" => "-ERR unknown command 'HELLO'",
            _ => "+nonsense",
        })
    });
    let locks = LockManager::connect(&server.url())
        .await
        .expect("it says PONG");
    let error = locks
        .acquire("k", LockOptions::default().no_wait())
        .await
        .expect_err("must be refused");
    unavailable(&error, "wrong form");
}

#[tokio::test]
async fn a_server_without_the_commands_of_locks_is_refused_at_connect_and_no_token_is_shown() {
    let server = FakeServer::start(|request| {
        // As a real server does, with the arguments quoted.
        let text = format!("'{}'", request.join("' '"));
        lock_tests::Reply::line(&match request[0].as_str() {
            "PING" => "+PONG".to_owned(),
            command => {
                format!("-ERR unknown command '{command}', with args beginning with: {text}")
            }
        })
    });
    let lazily = LockManager::builder().connect_lazily();
    for connected in [
        LockManager::connect(&server.url()).await,
        lazily.connect(&server.url()).await,
    ] {
        let error = connected.expect_err("no lock can be taken");
        invalid(&error, "has no streams (`XADD`)");
        assert!(!full_text(&error).contains("lc1:"), "{error:?}");
    }
}

#[tokio::test]
async fn a_server_that_quotes_the_password_back_is_not_quoted() {
    // The reply is that of a server where the administrator has renamed HELLO.
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

/// The test reads the log of the whole process, since the I/O thread logs, too.
#[tokio::test]
async fn no_log_line_has_an_owner_token_or_a_password() {
    let log = Log::of_the_process();
    let server = RedisServer::builder().password(SECRET).start();
    let locks = connect(&server.url()).await;
    let guard = locks
        .acquire_free("k", LockOptions::new(Duration::from_secs(4)))
        .await;
    let token = server.get("lock:k").expect("held");
    let secret = token.rsplit(':').next().expect("has parts").to_owned();
    assert!(secret.len() >= 32, "{token}");
    // A renewal, a loss, a failed release and an acquire against a server that is down.
    server.cli(&["SET", "lock:k", "another's"]);
    guard.lease().lost().await;
    drop(guard);
    let held = locks
        .acquire_free("other", LockOptions::new(Duration::from_secs(4)))
        .await;
    server.kill9();
    let error = locks
        .acquire("third", LockOptions::default().no_wait())
        .await
        .expect_err("down");
    held.lease().lost().await;
    drop(held);
    eventually(
        Duration::from_secs(20),
        "the failed release is logged",
        async || log.text().contains("a release got no reply"),
    )
    .await;
    let text = log.text() + &full_text(&error) + &format!("{locks:?}");
    assert!(text.contains("lease lost"), "{text}");
    for hidden in [SECRET, &secret, "lc1:"] {
        assert!(!text.contains(hidden), "{hidden} in {text}");
    }
}
