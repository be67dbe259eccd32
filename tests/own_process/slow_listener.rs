//! A subscriber of `tracing` that takes its time in the middle of a hand-off.
//!
//! A process of its own: the subscriber is that of the whole process.

use std::{
    io::{self, Write},
    thread,
    time::Duration,
};

use lock_core::{LockManager, LockOptions};
use lock_tests::{HANG, RedisServer};
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(4);

/// Sleeps while a release is written into the log, from before a lease is renewed for the first time until after.
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

/// The thread of the manager looks at the lease, whether to renew it, while the next task does not have it yet.
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
    // Three at once, so that tokens are taken in advance, and the lock is handed on without a message.
    let (first, second, third) = (acquire(), acquire(), acquire());
    let first = first.await.expect("no panic").expect("free");
    sleep(TTL / 4).await;
    drop(first);
    let second = second.await.expect("no panic").expect("its turn");
    let value = server.get("lock:k");
    let lease = second.lease();
    let lost = lease.lost();
    tokio::pin!(lost);
    // Without a renewal it would have ended by then.
    let told = tokio::select! {
        biased;
        lost = &mut lost => Some(lost),
        () = sleep(TTL * 3 / 2) => None,
    };
    if told.is_none() && server.get("lock:k") != value {
        let told = timeout(HANG, lost).await;
        told.expect("the holder is told of the end of its lease");
    }
    drop(second);
    let third = timeout(HANG, third).await.expect("its turn comes");
    drop(third.expect("no panic").expect("its turn"));
}
