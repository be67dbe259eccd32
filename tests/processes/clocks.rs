//! Servers whose clock jumps or runs too fast while locks are held.

use std::time::Duration;

use lock_core::{LeaseLost, LockOptions};
use lock_tests::{
    AcquireFree as _, HANG, Holders, Load, RedisServer, SECOND, ShiftedClock, connect, eventually,
    history::{Event, Step},
    patient,
};
use tokio::time::timeout;

#[tokio::test]
async fn a_clock_that_jumps_ahead_ends_leases_while_tokens_grow() {
    let clock = ShiftedClock::new();
    let server = RedisServer::builder().clock(&clock).start();
    let (one, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let first = one.acquire_free("k", patient()).await;
    clock.set_ahead(SECOND * 60);
    // Exclusion is not promised, but the first holder learns of its loss.
    let second = other.acquire_free("k", patient()).await;
    assert!(second.lease().fencing_token() > first.lease().fencing_token());
    let reason = timeout(HANG, first.lease().lost()).await.expect("noticed");
    assert_eq!(reason, LeaseLost::TakenAway);
    second.lease().verify().await.expect("held");
}

#[tokio::test]
async fn a_clock_that_jumps_back_makes_a_lock_last_and_an_operator_sees_it_and_ends_it() {
    let clock = ShiftedClock::new();
    let server = RedisServer::builder().clock(&clock).start();
    let (one, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let options = || LockOptions::new(SECOND * 2);
    let first = one.acquire_free("k", options().without_renewal()).await;
    let before = first.lease().fencing_token();
    clock.set_back(SECOND * 3600);
    // The lease ends in time for its holder, but an hour later on the server.
    let reason = timeout(HANG, first.lease().lost()).await.expect("it ends");
    assert_eq!(reason, LeaseLost::Expired);
    let seen = other.inspect("k").await.expect("a reply").expect("held");
    let left = seen.remaining.expect("an expiry");
    assert!(left > SECOND * 3000, "{left:?}");
    other.force_release("k").await.expect("a reply");
    let second = other.acquire_free("k", options().no_wait()).await;
    assert!(second.lease().fencing_token() > before);
}

/// The allowance for drift covers this.
#[tokio::test]
async fn a_clock_one_percent_too_fast_does_not_admit_a_second_holder() {
    let clock = ShiftedClock::new();
    let server = RedisServer::builder().clock(&clock).start();
    let load = Load {
        keys: vec!["k".to_owned()],
        processes: 2,
        tasks: 2,
        ttl: SECOND,
        // Longer than the ttl, so that leases are renewed by a clock that drifts away from ours.
        hold: Duration::from_millis(1300),
    };
    let mut holders = Holders::start(env!("CARGO_BIN_EXE_holder"), &server.url(), &load);
    let started = std::time::Instant::now();
    let released = |event: &&Event| event.step == Step::Released;
    eventually(HANG, "five renewed leases were released", async || {
        clock.set_ahead(started.elapsed() / 100);
        let events = holders.history().events().iter();
        events.filter(released).count() >= 5
    })
    .await;
    holders.stop().assert_in_order();
}
