//! Warnings about the settings and the rights on a server, and the line that names it. Each is logged once for each manager.

use lock_core::inspect::Topic;
use lock_tests::{HANG, Log, RedisServer, checked, connect, eventually, rights_in_docs};

use crate::rights::{names, points_to_the_page, reported, warnings_about};

#[tokio::test]
async fn an_eviction_policy_that_threatens_locks_causes_one_warning() {
    Log::of_the_process();
    let server = RedisServer::builder()
        .setting("maxmemory", "100mb")
        .setting("maxmemory-policy", "volatile-lru")
        .start();
    let evictions = || {
        let text = warnings_about(&server);
        let lines = text.lines();
        lines
            .filter(|line| line.contains("maxmemory-policy"))
            .count()
    };
    let locks = connect(&server.url()).await;
    let text = warnings_about(&server);
    assert!(
        text.contains("volatile-lru") && text.contains("`noeviction`"),
        "{text}"
    );
    assert_eq!(evictions(), 1);
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    eventually!(HANG, "it is connected again" => locks.inspect("k").await.is_ok());
    assert_eq!(evictions(), 1, "not repeated on a new connection");
    let _other = connect(&server.url()).await;
    assert_eq!(evictions(), 2, "another manager warns again");
}

#[tokio::test]
async fn a_harmless_eviction_policy_causes_no_warning() {
    Log::of_the_process();
    for settings in [
        &[("maxmemory", "100mb"), ("maxmemory-policy", "noeviction")][..],
        &[("maxmemory", "0"), ("maxmemory-policy", "allkeys-lru")],
    ] {
        let builder = RedisServer::builder();
        let builder = settings.iter().fold(builder, |builder, (name, value)| {
            builder.setting(name, value)
        });
        let server = builder.start();
        connect(&server.url()).await;
        assert_eq!(warnings_about(&server), "", "{settings:?}");
    }
}

#[tokio::test]
async fn an_eviction_policy_that_cannot_be_read_causes_one_warning_about_the_right() {
    Log::of_the_process();
    let server = RedisServer::builder()
        .setting("maxmemory", "100mb")
        .setting("maxmemory-policy", "allkeys-lru")
        .start();
    let mut rights = rights_in_docs("locks");
    rights.retain(|right| right != "+info");
    server.allow("blind", &rights);
    connect(&server.url_as("blind", "word")).await;
    let logged = warnings_about(&server);
    assert!(logged.contains("`+info`"), "{logged}");
    assert_eq!(logged.lines().count(), 1, "{logged}");
}

#[tokio::test]
async fn a_user_without_scripts_gets_one_warning_about_the_missing_queue() {
    Log::of_the_process();
    let server = RedisServer::start();
    server.allow("user", &rights_in_docs("locks-watch"));
    let url = server.url_as("user", "word");
    let warned = || warnings_about(&server).matches("there is no queue").count();
    let locks = connect(&url).await;
    assert_eq!(warned(), 1);
    let health = checked(&locks).await;
    let [warning] = &health.warnings[..] else {
        panic!("{health:?}");
    };
    assert_eq!(warning.topic, Topic::Rights);
    assert!(warning.text.contains("waiters poll"), "{warning}");
    assert!(points_to_the_page(&warning.text), "{warning}");
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually!(HANG, "it is connected again" => locks.check().await.is_ok());
    assert_eq!(warned(), 1, "not repeated on a new connection");
    // If a right for locks without scripts is missing, too, the error names the right for each of the two.
    server.cli(&["ACL", "SETUSER", "user", "-watch"]);
    let reported = reported(&url, &[&server]).await;
    assert!(names(&reported, "+evalsha"), "{reported}");
    assert!(names(&reported, "+watch"), "{reported}");
}

#[tokio::test]
async fn connecting_logs_the_server_once() {
    Log::of_the_process();
    let server = RedisServer::start();
    server.add_user_without_scripts();
    let logged = || {
        let text = Log::of_the_process().lines_about(&server, "INFO");
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let info = server.info("server");
    let version = info
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"));
    let version = version.expect("a version");
    let mut before = 0;
    for (url, says) in [
        (
            server.url(),
            "protocol=\"RESP3\" mode=\"push\" scripts=true",
        ),
        (
            server.url() + "?protocol=2",
            "protocol=\"RESP2\" mode=\"polling\" scripts=true",
        ),
        (
            server.url_without_scripts(),
            "protocol=\"RESP3\" mode=\"polling\" scripts=false",
        ),
    ] {
        let locks = connect(&url).await;
        let lines = logged();
        assert_eq!(lines.len(), before + 1, "{lines:?}");
        let line = &lines[before];
        let what = format!("kind=\"redis\" version=\"{version}\" {says}");
        assert!(line.contains(&what) && line.contains("connected"), "{line}");
        assert!(!line.contains("word"), "{line}");
        before += 1;
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        eventually!(HANG, "it is connected again" => locks.check().await.is_ok());
        assert_eq!(logged().len(), before, "not repeated on a new connection");
    }
}
