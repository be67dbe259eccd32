//! A `lockctl run` that is interrupted leaves nothing, and one that lost its lock does not exit with 0.

use lock_tests::{
    AcquireFree as _, Direction, Process, Proxy, RedisServer, ReleaseHeld as _, SECOND, connect,
    options,
};

use super::{LOCKCTL, ended, until_awaited_by};

const QUEUE: &str = "__lock_core__:waiters:lock:k";

fn waiting(url: &str) -> Process {
    let words = [
        "--url", url, "run", "k", "--wait", "forever", "--", "sleep", "1000",
    ];
    Process::spawn(LOCKCTL, &words, &[])
}

#[tokio::test]
async fn an_interrupted_wait_leaves_no_entry_in_the_queue() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let guard = locks.acquire_free("k", options()).await;
    let proxy = Proxy::start(server.port());
    let mut process = waiting(&proxy.url());
    until_awaited_by(1, &locks, "k").await;
    // The clean-up takes longer than the program otherwise needs to end.
    proxy.delay(Direction::Requests, SECOND / 2);
    process.interrupt();
    assert_eq!(ended(&mut process).await.code(), Some(128 + 2));
    assert!(server.queue(QUEUE).is_empty());
    guard.release_held().await;
    assert_eq!(server.get("lock:k"), None);
}

/// In even rounds, the lock has been granted when the signal is sent. In odd rounds, the two race.
#[tokio::test]
async fn an_interrupted_wait_releases_a_lock_that_it_was_granted() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    for round in 0..20 {
        let guard = locks.acquire_free("k", options()).await;
        let mut process = waiting(&server.url());
        until_awaited_by(1, &locks, "k").await;
        if round % 2 == 0 {
            guard.release_held().await;
            process.interrupt();
        } else {
            process.interrupt();
            guard.release_held().await;
        }
        assert_eq!(ended(&mut process).await.code(), Some(128 + 2));
        assert!(server.queue(QUEUE).is_empty());
        assert_eq!(server.get("lock:k"), None);
    }
}

/// The lease is not due for a renewal, so only the release can find the loss.
#[tokio::test]
async fn a_loss_that_only_the_release_finds_is_exit_code_70() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let url = server.url();
    for code in ["0", "3"] {
        let script = format!("echo started; read line; exit {code}");
        let words = [
            "--url", &url, "run", "k", "--ttl", "1h", "--", "sh", "-c", &script,
        ];
        let mut process = Process::spawn(LOCKCTL, &words, &[]);
        assert_eq!(process.line(), "started");
        locks.force_release("k").await.expect("a reply");
        process.say("continue");
        assert_eq!(ended(&mut process).await.code(), Some(70));
    }
}
