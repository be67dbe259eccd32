//! The promises of every backend to the driver, tested without the driver.

use std::{
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use futures_executor::block_on;
use lock_core::{__simulation::Claim, LockManager};
use lock_tests::{HANG, eventually};

const TTL: Duration = Duration::from_secs(600);

/// Checks all claims, each with its own key.
pub(crate) async fn every_claim_holds(locks: &LockManager) {
    an_acquire_is_idempotent_and_excludes_other_owners(locks).await;
    an_acquire_may_be_polled_anywhere(locks).await;
    a_renewal_neither_shortens_nor_recreates(locks).await;
}

/// Repeats a release as the driver does. Returns whether the first attempt found the key.
async fn released(claim: &Claim) -> bool {
    let first = claim.release().await.expect("a reply");
    if !first.is_certain {
        eventually(HANG, "the release is certain", async || {
            claim.release().await.expect("a reply").is_certain
        })
        .await;
    }
    first.was_ours
}

async fn an_acquire_is_idempotent_and_excludes_other_owners(locks: &LockManager) {
    let [first, second, third] = [(); 3].map(|()| Claim::new(locks, "one"));
    let token = first.acquire(TTL).await.expect("a reply");
    assert!(token.is_some(), "it is free");
    assert_eq!(second.acquire(TTL).await.expect("a reply"), None);
    assert!(!released(&second).await, "the key is not its own");
    let again = first.acquire(TTL).await.expect("a reply");
    assert!(again > token, "an acquire may be repeated: {again:?}");
    assert!(released(&first).await);
    let next = third.acquire(TTL).await.expect("a reply");
    assert!(next > again, "{next:?} after {again:?}");
    assert!(released(&third).await);
}

/// A task begins the request, and a thread without a runtime finishes it.
async fn an_acquire_may_be_polled_anywhere(locks: &LockManager) {
    let claim = Claim::new(locks, "anywhere");
    let mut acquire = Box::pin(claim.acquire(TTL));
    let mut task = Context::from_waker(Waker::noop());
    let acquired = match acquire.as_mut().poll(&mut task) {
        Poll::Ready(acquired) => acquired,
        Poll::Pending => {
            let elsewhere = thread::spawn(move || block_on(acquire));
            eventually!(HANG, "the acquire ends elsewhere" => elsewhere.is_finished());
            elsewhere.join().expect("no panic")
        }
    };
    assert!(acquired.expect("a reply").is_some());
    assert!(released(&claim).await);
}

async fn a_renewal_neither_shortens_nor_recreates(locks: &LockManager) {
    let [first, second] = [(); 2].map(|()| Claim::new(locks, "renewed"));
    let acquired = first.acquire(TTL).await.expect("a reply");
    assert!(acquired.is_some(), "it is free");
    let renewed = first.renew(Duration::from_secs(1)).await;
    assert!(renewed.expect("a reply"), "it is ours");
    let seen = locks.inspect("renewed").await.expect("a reply");
    let left = seen.expect("it is held").remaining;
    assert!(left > Some(TTL / 2), "{left:?}");
    assert!(released(&first).await);
    assert!(!first.renew(TTL).await.expect("a reply"), "it is released");
    let acquired = second.acquire(TTL).await.expect("a reply");
    assert!(acquired.is_some(), "it is free");
    assert!(released(&second).await);
}
