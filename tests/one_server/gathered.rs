//! Free locks of many tasks, whose requests share messages. No request affects the others in its message.

use std::{collections::BTreeMap, ops::Range};

use lock_core::{LockError, LockGuard, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, HANG, Proxy, RedisServer, ReleaseHeld as _, assert_fails, connect,
    eventually, granted,
};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use crate::{runtimes::connected, stopped_waiter::Stopped};

/// The first requests are sent alone, and the others in messages.
const TASKS: Range<usize> = 0..24;

/// Options with a ttl so long that no lease is renewed during a test.
fn options() -> LockOptions {
    LockOptions::new(HANG * 10).wait(HANG)
}

fn key(number: usize) -> String {
    format!("k{number}")
}

fn lock(number: usize) -> String {
    format!("lock:k{number}")
}

/// A server, and a manager behind a proxy, with a connection for the runtime of this test.
struct Crowd {
    server: RedisServer,
    proxy: Proxy,
    locks: LockManager,
}

impl Crowd {
    async fn connected() -> Self {
        let server = RedisServer::start();
        Self::to(server, |_, proxy| proxy.url()).await
    }

    async fn to(server: RedisServer, url: impl FnOnce(&RedisServer, &Proxy) -> String) -> Self {
        let proxy = Proxy::start(server.port());
        let locks = connect(&url(&server, &proxy)).await;
        connected(&locks, &server, 2).await;
        proxy.clear_log();
        Self {
            server,
            proxy,
            locks,
        }
    }

    fn acquire(&self, number: usize) -> Acquiring {
        let locks = self.locks.clone();
        tokio::spawn(async move { locks.acquire(key(number), options()).await })
    }

    /// Acquires the locks of all tasks together.
    async fn all_held(&self) -> Vec<LockGuard> {
        acquired(TASKS.map(|number| self.acquire(number)).collect()).await
    }

    /// Waits until only the fencing clock is left.
    async fn nothing_is_left(&self) {
        eventually!(HANG, "nothing is left" => self.server.keys("*") == ["__lock_core__:clock"]);
    }
}

type Acquiring = JoinHandle<Result<LockGuard, LockError>>;

async fn acquired(tasks: Vec<Acquiring>) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(granted(task).await);
    }
    guards
}

/// Releases all locks together, and returns the results in their order.
async fn released(guards: Vec<LockGuard>) -> Vec<Result<(), LockError>> {
    let mut tasks = JoinSet::new();
    for (number, guard) in guards.into_iter().enumerate() {
        tasks.spawn(async move { (number, guard.release().await) });
    }
    let all = timeout(HANG, tasks.join_all()).await.expect("no hang");
    all.into_iter()
        .collect::<BTreeMap<_, _>>()
        .into_values()
        .collect()
}

async fn all_are_released(guards: Vec<LockGuard>) {
    for result in released(guards).await {
        result.expect("it is held");
    }
}

#[tokio::test]
async fn a_waiter_is_granted_a_lock_that_is_released_with_others() {
    let crowd = Crowd::connected().await;
    let _waiter = Stopped::subscribed(&crowd.server);
    let guard = crowd.locks.acquire_free("k", options()).await;
    Stopped::join(&crowd.server);
    let mut guards = crowd.all_held().await;
    guards.insert(12, guard);
    all_are_released(guards).await;
    Stopped::gets_it(&crowd.server).await;
    assert_eq!(
        crowd.server.keys("lock:*"),
        ["lock:k"],
        "the others are free"
    );
}

#[tokio::test]
async fn locks_that_were_lost_do_not_affect_the_release_of_others() {
    let crowd = Crowd::connected().await;
    let guards = crowd.all_held().await;
    crowd.server.cli(&["SET", &lock(7), "another client's"]);
    crowd.server.cli(&["DEL", &lock(11)]);
    let mut results = released(guards).await;
    for lost in [11, 7] {
        let result = results.remove(lost);
        assert_fails!(result, LockError::Lost { .. });
    }
    for result in results {
        result.expect("it is held");
    }
    assert_eq!(crowd.server.keys("lock:*"), [lock(7)]);
    let theirs = crowd.server.get(&lock(7));
    assert_eq!(theirs.as_deref(), Some("another client's"));
}

#[tokio::test]
async fn a_waiter_is_not_overtaken_by_a_request_among_others() {
    let crowd = Crowd::connected().await;
    let _waiter = Stopped::subscribed(&crowd.server);
    Stopped::join(&crowd.server);
    let mut tasks: Vec<_> = TASKS.map(|number| crowd.acquire(number)).collect();
    let locks = crowd.locks.clone();
    let later = tokio::spawn(async move { locks.acquire("k", options()).await });
    tasks.extend((100..104).map(|number| crowd.acquire(number)));
    Stopped::gets_it(&crowd.server).await;
    all_are_released(acquired(tasks).await).await;
    assert!(!later.is_finished() && Stopped::has_it(&crowd.server));
    later.abort();
}

#[tokio::test]
async fn acquires_that_are_dropped_before_their_message_is_sent_leave_no_lock() {
    let crowd = Crowd::connected().await;
    for round in 0..20 {
        let tasks: Vec<_> = TASKS.map(|number| crowd.acquire(number)).collect();
        // Each round drops them at another time.
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        for task in &tasks {
            task.abort();
        }
        for task in tasks {
            drop(timeout(HANG, task).await.expect("no hang"));
        }
        crowd.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_busy_key_with_a_waiter_causes_no_scripts_for_free_keys() {
    let crowd = Crowd::connected().await;
    let url = crowd.server.url();
    let (holder, waiter) = (connect(&url).await, connect(&url).await);
    let held = holder.acquire_free("k13", options()).await;
    let waiting = tokio::spawn(async move { waiter.acquire("k13", options()).await });
    let queue = "__lock_core__:waiters:lock:k13";
    eventually!(HANG, "it is in the queue" => crowd.server.queue(queue).len() == 1);
    let mut tasks: Vec<_> = TASKS.map(|number| crowd.acquire(number)).collect();
    let busy = tasks.remove(13);
    let guards = acquired(tasks).await;
    let scripts = crowd.proxy.requests("EVALSHA");
    assert!(
        scripts < TASKS.len() / 2,
        "for the busy key alone: {scripts}"
    );
    all_are_released(guards).await;
    held.release_held().await;
    all_are_released(acquired(vec![waiting]).await).await;
    all_are_released(acquired(vec![busy]).await).await;
    crowd.nothing_is_left().await;
}

#[tokio::test]
async fn a_key_that_the_user_may_not_lock_does_not_affect_the_others() {
    let rights = "on >password ~lock:k* ~lock:before ~lock:_* resetchannels +@all &__lock_core__:* ~__lock_core__:*";
    let server = RedisServer::builder()
        .acl(&format!("user locks {rights}"))
        .start();
    let url = |_: &RedisServer, proxy: &Proxy| proxy.url_as("locks", "password");
    let crowd = Crowd::to(server, url).await;
    let mut tasks: Vec<_> = TASKS.map(|number| crowd.acquire(number)).collect();
    let locks = crowd.locks.clone();
    let refused = tokio::spawn(async move { locks.acquire("refused", options()).await });
    tasks.extend((100..104).map(|number| crowd.acquire(number)));
    let refused = timeout(HANG, refused)
        .await
        .expect("no hang")
        .expect("no panic");
    assert_fails!(refused, LockError::Unavailable { .. });
    all_are_released(acquired(tasks).await).await;
    crowd.nothing_is_left().await;
}

#[tokio::test]
async fn a_key_of_another_type_does_not_affect_the_other_releases() {
    let crowd = Crowd::connected().await;
    let guards = crowd.all_held().await;
    crowd.server.cli(&["DEL", &lock(5)]);
    crowd.server.cli(&["RPUSH", &lock(5), "a list"]);
    for (number, result) in released(guards).await.into_iter().enumerate() {
        assert_eq!(result.is_ok(), number != 5, "{number}: {result:?}");
    }
    assert_eq!(crowd.server.keys("lock:*"), [lock(5)]);
}
