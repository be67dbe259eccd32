//! A subscriber of `tracing` that is slow in the middle of a hand-off.
//!
//! The test needs a separate process: the subscriber is that of the whole process.

use std::{
    io::{self, Write},
    thread,
    time::Duration,
};

use lock_core::{LockManager, LockOptions};
use lock_tests::{HANG, RedisServer};
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(4);

/// Sleeps while a release is written to the log; the sleep begins before the first renewal of the lease and ends after it.
struct Slow;

impl Write for Slow {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if line.windows(8).any(|word| word == b"released") {
            thread::sleep(TTL * 3 / 20);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The manager's thread checks whether to renew the lease while the next task does not have it yet.
#[tokio::test]
async fn a_listener_that_takes_its_time_costs_the_next_task_neither_its_lease_nor_the_word_of_its_end()
 {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(|| Slow)
        .init();
    let server = RedisServer::start();
    let builder = LockManager::builder().max_handoff_time(HANG);
    let locks = builder.connect(&server.url()).await.expect("up");
    let acquire = || {
        let locks = locks.clone();
        let options = LockOptions::new(TTL).wait(HANG);
        tokio::spawn(async move { locks.acquire("k", options).await })
    };
    // Three acquires at once, so that tokens are prefetched, and the lock is handed on without a message.
    let (first, second, third) = (acquire(), acquire(), acquire());
    let first = first.await.expect("no panic").expect("free");
    sleep(TTL / 4).await;
    drop(first);
    let second = second.await.expect("no panic").expect("its turn");
    let value = server.get("lock:k");
    let lease = second.lease();
    let lost = lease.lost();
    tokio::pin!(lost);
    // Without a renewal, the lease would have ended by then.
    let seen = tokio::select! {
        biased;
        lost = &mut lost => Some(lost),
        () = sleep(TTL * 3 / 2) => None,
    };
    if seen.is_none() && server.get("lock:k") != value {
        let seen = timeout(HANG, lost).await;
        seen.expect("the holder is told of the end of its lease");
    }
    drop(second);
    let third = timeout(HANG, third).await.expect("its turn comes");
    drop(third.expect("no panic").expect("its turn"));
}
