//! A subscriber of `tracing` that is slow in the middle of a hand-off.
//!
//! The test needs a separate process, since the subscriber is that of the whole process.

use std::{
    io::{self, Write},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use lock_core::{LockManager, LockOptions};
use lock_tests::{HANG, RedisServer};
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(2);

static IS_SLOW: AtomicBool = AtomicBool::new(false);

/// Sleeps while a release is logged: from before the first renewal of the lease, which is due after a third of the ttl at the latest,
/// until after it.
struct Slow;

impl Write for Slow {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let is_slow = IS_SLOW.load(Ordering::SeqCst);
        if is_slow && line.windows(8).any(|word| word == b"released") {
            thread::sleep(TTL * 2 / 5);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// During the sleep, the manager's thread decides whether to renew a lease that the next task does not have yet.
#[tokio::test]
async fn a_slow_subscriber_does_not_cost_the_next_task_its_lease_or_the_notice_of_its_loss() {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(|| Slow)
        .init();
    let server = RedisServer::start();
    // Several rounds, since a stalled machine may lose a lease, too.
    for _ in 0..5 {
        if next_task_keeps_its_lease(&server).await {
            return;
        }
    }
    panic!("no next task kept its lease");
}

/// Hands a lease over while the subscriber is slow. Returns whether the next task kept the lease, and panics if the task lost it
/// without notice.
async fn next_task_keeps_its_lease(server: &RedisServer) -> bool {
    let locks = LockManager::connect(&server.url()).await.expect("up");
    let acquire = || {
        let locks = locks.clone();
        let options = LockOptions::new(TTL).wait(HANG);
        tokio::spawn(async move { locks.acquire("k", options).await })
    };
    // The reply to the second task has tokens for the next ones, too, so the third gets the lock without a message.
    let [first, second, third, fourth] = [(); 4].map(|()| acquire());
    drop(first.await.expect("no panic").expect("free"));
    let second = second.await.expect("no panic").expect("its turn");
    IS_SLOW.store(true, Ordering::SeqCst);
    drop(second);
    IS_SLOW.store(false, Ordering::SeqCst);
    let third = third.await.expect("no panic").expect("its turn");
    let value = server.get("lock:k");
    let lease = third.lease();
    let lost = lease.lost();
    tokio::pin!(lost);
    // Without a renewal, the lease ends by then.
    let seen = tokio::select! {
        biased;
        lost = &mut lost => Some(lost),
        () = sleep(TTL * 3 / 2) => None,
    };
    let is_kept = seen.is_none() && value.is_some() && server.get("lock:k") == value;
    if seen.is_none() && !is_kept {
        let seen = timeout(HANG, lost).await;
        seen.expect("the holder is notified of the loss of its lease");
    }
    drop(third);
    let fourth = timeout(HANG, fourth).await.expect("its turn comes");
    drop(fourth.expect("no panic").expect("its turn"));
    is_kept
}
