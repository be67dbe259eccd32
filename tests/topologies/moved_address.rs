//! An address that moves to a new primary, while connections to the old one stay, which still accepts writes.
//! Fencing tokens still grow in the order in which locks are acquired.

use std::time::{SystemTime, UNIX_EPOCH};

use lock_core::{FencingToken, LockManager};
use lock_tests::{
    AcquireFree, HANG, Proxy, RedisServer, ReleaseHeld, connect, eventually, options, patient,
};

const ROUNDS: usize = 100;

struct MovedAddress {
    old: RedisServer,
    _new: RedisServer,
    _proxy: Proxy,
    /// The managers on the old primary.
    before: [LockManager; 2],
    /// The manager on the new primary.
    after: LockManager,
}

impl MovedAddress {
    async fn start(url: impl Fn(&Proxy) -> String) -> Self {
        let [old, new] = [RedisServer::start(), RedisServer::start()];
        for server in [&old, &new] {
            server.add_user_without_scripts();
        }
        let proxy = Proxy::start(old.port());
        let url = url(&proxy);
        let before = [connect(&url).await, connect(&url).await];
        proxy.redirect_to(new.port());
        Self {
            old,
            _new: new,
            before,
            after: connect(&url).await,
            _proxy: proxy,
        }
    }
}

/// Waits until the servers, which do not know each other, issue larger tokens. Their clocks count milliseconds.
async fn later_than(token: FencingToken) {
    eventually(HANG, "the millisecond is over", async || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let millis = since.expect("after 1970").as_millis();
        millis > u128::from(u64::from(token) / 2048)
    })
    .await;
}

/// Acquires and releases the lock, and returns once every server issues larger tokens.
async fn token(locks: &LockManager) -> FencingToken {
    let guard = locks.acquire_free("k", options()).await;
    let token = guard.lease().fencing_token();
    guard.release_held().await;
    later_than(token).await;
    token
}

async fn tokens_grow(address: MovedAddress) {
    let mut last = None;
    let mut back = 0;
    let before = address.old.calls("set");
    for _ in 0..ROUNDS {
        for locks in [&address.before[0], &address.after] {
            let next = Some(token(locks).await);
            back += usize::from(next <= last);
            last = last.max(next);
        }
    }
    assert_eq!(back, 0, "of {} tokens went back", 2 * ROUNDS);
    let sets = address.old.calls("set") - before;
    assert!(
        sets >= ROUNDS as u64,
        "the old primary accepted {sets} writes"
    );
}

#[tokio::test]
async fn tokens_grow_across_an_address_that_moves() {
    tokens_grow(MovedAddress::start(Proxy::url).await).await;
}

#[tokio::test]
async fn tokens_grow_across_an_address_that_moves_for_a_user_without_scripts() {
    let without_scripts = MovedAddress::start(Proxy::url_without_scripts);
    tokens_grow(without_scripts.await).await;
}

/// The old primary issues the token of a waiter when it grants the lock.
#[tokio::test]
async fn a_waiter_on_the_old_primary_gets_a_larger_token_than_the_new_one_issued() {
    let address = MovedAddress::start(Proxy::url).await;
    let [holder, waiter] = &address.before;
    for _ in 0..10 {
        let guard = holder.acquire_free("k", options()).await;
        let waiter = waiter.clone();
        let waiting = tokio::spawn(async move { waiter.acquire("k", patient()).await });
        eventually(HANG, "it is in the wait queue", async || {
            address.old.keys("__lock_core__:waiters:*").len() == 1
        })
        .await;
        let meanwhile = token(&address.after).await;
        guard.release_held().await;
        let granted = waiting.await.expect("no panic").expect("granted");
        assert!(granted.lease().fencing_token() > meanwhile);
        granted.release_held().await;
    }
}
