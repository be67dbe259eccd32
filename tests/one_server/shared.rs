//! Shared locks on one server: turns, shared leases that a process keeps, and the events that end them.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::poll;
use lock_core::{
    LeaseLost, LockError, LockManager, LockOptions,
    inspect::{Holder, LockMode},
};
use lock_tests::{
    AcquireFree as _, HANG, RedisServer, ReleaseHeld as _, SECOND, assert_fails, connect,
    eventually, options, patient, reason_of_loss,
};
use redis::Value;
use tokio::task::{JoinHandle, JoinSet};

const LOCK: &str = "lock:k";
const HOLDERS: &str = "__lock_core__:holders:lock:k";

fn shared() -> LockOptions {
    options().shared()
}

async fn connect_all<const N: usize>(server: &RedisServer) -> [LockManager; N] {
    let mut all = Vec::new();
    for _ in 0..N {
        all.push(connect(&server.url()).await);
    }
    all.try_into().expect("as many")
}

/// Tasks that take a key again and again, without a pause, until a flag stops them.
struct Crowd {
    stop: Arc<AtomicBool>,
    /// The number of bodies that each task has run.
    bodies: Vec<Arc<AtomicUsize>>,
    tasks: JoinSet<()>,
}

impl Crowd {
    fn start(managers: &[LockManager], each: usize, options: &LockOptions) -> Self {
        let (stop, mut bodies) = (Arc::<AtomicBool>::default(), Vec::new());
        let mut tasks = JoinSet::new();
        for locks in managers.iter().flat_map(|locks| vec![locks; each]) {
            let (locks, options) = (locks.clone(), options.clone().wait(HANG));
            let (stop, own) = (stop.clone(), Arc::<AtomicUsize>::default());
            bodies.push(own.clone());
            tasks.spawn(async move {
                while !stop.load(SeqCst) {
                    let body = async |_| tokio::time::sleep(Duration::from_millis(5)).await;
                    locks.run("k", options.clone(), body).await.expect("a turn");
                    own.fetch_add(1, SeqCst);
                }
            });
        }
        Self {
            stop,
            bodies,
            tasks,
        }
    }

    /// Waits until each task has run at least one body from its beginning to its end.
    async fn continues(&self) {
        let counts = || self.bodies.iter().map(|own| own.load(SeqCst));
        let before: Vec<_> = counts().collect();
        eventually!(HANG, "each has its turn" => {
            counts().zip(&before).all(|(now, before)| now >= before + 2)
        });
    }

    async fn stop(self) {
        self.stop.store(true, SeqCst);
        self.tasks.join_all().await;
    }
}

async fn is_busy(locks: &LockManager, options: LockOptions) -> bool {
    match locks.acquire("k", options.no_wait()).await {
        Err(LockError::Busy { .. }) => true,
        Ok(guard) => {
            guard.release_held().await;
            false
        }
        other => panic!("{other:?}"),
    }
}

/// Makes a task wait for the key. It is in the server's queue when this returns.
async fn in_queue(
    server: &RedisServer,
    locks: &LockManager,
    options: LockOptions,
) -> JoinHandle<lock_core::LockGuard> {
    const QUEUE: &str = "__lock_core__:waiters:lock:k";
    let before = server.queue(QUEUE).len();
    let locks = locks.clone();
    let waiting = tokio::spawn(async move { locks.acquire_free("k", options.wait(HANG)).await });
    eventually!(HANG, "it is in the queue" => server.queue(QUEUE).len() > before);
    waiting
}

#[tokio::test]
async fn an_inspection_names_each_holder_and_the_queue_in_its_order() {
    let server = RedisServer::start();
    let labelled = async |label: &str| {
        let builder = LockManager::builder().label(label);
        builder.connect(&server.url()).await.expect("it is up")
    };
    let [one, other, third] = [
        labelled("one").await,
        labelled("other").await,
        labelled("third").await,
    ];
    let first = one.acquire_free("k", shared()).await;
    let second = other.acquire_free("k", shared()).await;
    let alone = in_queue(&server, &third, options()).await;
    let later = in_queue(&server, &one, options()).await;
    let last = in_queue(&server, &other, shared()).await;
    let seen = third.inspect("k").await.expect("works").expect("held");
    let mut holders: Vec<_> = [&seen.holder]
        .into_iter()
        .chain(&seen.other_holders)
        .collect();
    holders.sort_by_key(ToString::to_string);
    let ours = |label: &str| Holder::Ours(label.to_owned());
    assert_eq!(holders, [&ours("one"), &ours("other")]);
    // They are those of the leases, in the same order.
    let leases = seen.leases.iter().map(|lease| &lease.process);
    assert!(leases.eq([&seen.holder].into_iter().chain(&seen.other_holders)));
    assert!(seen.leases.iter().all(|lease| lease.permit.is_none()));
    let queue: Vec<_> = seen
        .queue
        .iter()
        .map(|one| (&one.process, one.mode))
        .collect();
    assert_eq!(
        queue,
        [
            (&ours("third"), LockMode::Exclusive),
            (&ours("one"), LockMode::Exclusive),
            (&ours("other"), LockMode::Shared),
        ]
    );
    let listed = third.list("k").next().await;
    let listed = listed.expect("a lock").expect("a reply").info;
    assert_eq!(
        (listed.holder, listed.holders, listed.waiters),
        (seen.holder, 2, 3)
    );
    assert!(listed.other_holders.is_empty() && listed.queue.is_empty());
    first.release_held().await;
    second.release_held().await;
    // After an exclusive phase, shared requests are next.
    for waiting in [alone, last, later] {
        waiting.await.expect("granted").release_held().await;
    }
}

#[tokio::test]
async fn tasks_that_do_not_wait_share_a_key_from_the_first_request() {
    let server = RedisServer::start();
    let [locks, writer] = connect_all(&server).await;
    let all = async || {
        let calls = [(); 4].map(|()| locks.try_acquire("k", shared()));
        let tried = futures_util::future::join_all(calls).await;
        let taken = tried.into_iter().map(|tried| tried.expect("a reply"));
        taken.map(|guard| guard.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(all().await, [true; 4]);
    // A refused exclusive request ends the share that the process keeps.
    eventually!(HANG, "it is free" => !is_busy(&writer, options()).await);
    let guard = writer.acquire_free("k", options()).await;
    assert_eq!(all().await, [false; 4]);
    guard.release_held().await;
    assert_eq!(all().await, [true; 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_one_process_share_a_key_without_further_requests() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let long = LockOptions::new(SECOND * 60).shared();
    let first = locks.acquire_free("k", long.clone()).await;
    let before = server.calls("evalsha");
    let readers = Crowd::start(std::slice::from_ref(&locks), 16, &long);
    for _ in 0..5 {
        readers.continues().await;
    }
    assert_eq!(server.calls("evalsha"), before);
    readers.stop().await;
    first.release_held().await;
    eventually(HANG, "a share without a task ends by itself", async || {
        server.get(LOCK).is_none() && server.keys("*holders*").is_empty()
    })
    .await;
}

/// No reader ever pauses, and each process keeps its shared lease.
#[tokio::test(flavor = "multi_thread")]
async fn an_exclusive_request_and_readers_without_a_pause_get_their_turns() {
    let server = RedisServer::start();
    let managers: [LockManager; 4] = connect_all(&server).await;
    let readers = Crowd::start(&managers[..3], 4, &LockOptions::new(SECOND * 60).shared());
    readers.continues().await;
    for round in 0..5 {
        // The process of the last two writers has readers itself.
        let writer = &managers[if round < 3 { 3 } else { 0 }];
        let guard = writer.acquire_free("k", patient()).await;
        assert!(is_busy(&managers[1], shared()).await);
        guard.release_held().await;
        readers.continues().await;
    }
    readers.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_get_their_turn_among_exclusive_holders_without_a_pause() {
    let server = RedisServer::start();
    let managers: [LockManager; 4] = connect_all(&server).await;
    let writers = Crowd::start(&managers[..3], 2, &options());
    writers.continues().await;
    for _ in 0..5 {
        let reader = managers[3].acquire_free("k", patient().shared()).await;
        assert!(is_busy(&managers[0], options()).await);
        reader.release_held().await;
    }
    writers.stop().await;
}

/// The lease of another holder, which ends later, does not prolong that of the one that is gone.
#[tokio::test]
async fn a_holder_that_is_gone_blocks_an_exclusive_request_for_its_own_ttl() {
    let server = RedisServer::start();
    let [gone, alive, writer] = connect_all(&server).await;
    let ttl = SECOND * 5;
    let short = LockOptions::new(ttl).shared().without_renewal();
    let ended = gone.acquire_free("k", short).await;
    std::mem::forget(ended);
    let long = LockOptions::new(HANG * 10).shared();
    let guard = alive.acquire_free("k", long).await;
    let writing = in_queue(&server, &writer, options()).await;
    guard.release_held().await;
    eventually(HANG, "one holder is left", async || {
        let seen = writer.inspect("k").await.expect("a reply");
        seen.expect("it blocks the key").holders == 1
    })
    .await;
    let left = server.pttl(LOCK).expect("it blocks the key");
    assert!(left <= ttl, "{left:?}");
    let alone = writing.await.expect("within the ttl");
    alone.release_held().await;
}

#[tokio::test]
async fn clients_of_other_kinds_find_a_shared_key_taken_and_cannot_release_it() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let guard = locks.acquire_free("k", shared()).await;
    let set = server.cli(&["SET", LOCK, "mine", "NX", "PX", "60000"]);
    assert_eq!(set, Value::Nil);
    let release = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
    let released = server.cli(&["EVAL", release, "1", LOCK, "mine"]);
    assert_eq!(released, Value::Int(0));
    guard.lease().verify().await.expect("still held");
    guard.release_held().await;
    locks.force_release("k").await.expect("works");
    // While another client has the key, it is busy in both modes.
    server.cli(&["SET", LOCK, "mine", "NX", "PX", "60000"]);
    assert!(is_busy(&locks, shared()).await && is_busy(&locks, options()).await);
    let waiting = in_queue(&server, &locks, shared()).await;
    let released = server.cli(&["EVAL", release, "1", LOCK, "mine"]);
    assert_eq!(released, Value::Int(1));
    waiting.await.expect("polled").release_held().await;
}

#[tokio::test]
async fn a_forced_release_ends_every_share_of_a_key() {
    let server = RedisServer::start();
    let [one, other, operator] = connect_all(&server).await;
    let (first, second) = (
        one.acquire_free("k", shared()).await,
        other.acquire_free("k", shared()).await,
    );
    operator.force_release("k").await.expect("works");
    let alone = operator.acquire_free("k", options().no_wait()).await;
    for guard in [first, second] {
        let lost = guard.lease().verify().await;
        assert_eq!(reason_of_loss(lost), LeaseLost::TakenAway);
    }
    alone.release_held().await;
}

/// An eviction removes one key, and not all keys of a lock.
#[tokio::test]
async fn a_release_after_the_holders_were_evicted_leaves_earlier_holders_in_place() {
    let server = RedisServer::start();
    let [early, late, writer] = connect_all(&server).await;
    let _first = early.acquire_free("k", shared()).await;
    server.cli(&["DEL", HOLDERS]);
    let second = late.acquire_free("k", shared()).await;
    assert!(is_busy(&writer, options()).await);
    // The process does not keep its share, since an exclusive request was refused.
    second.release_held().await;
    eventually!(HANG, "the later one has left" => server.queue(HOLDERS).is_empty());
    assert!(is_busy(&writer, options()).await, "the first one holds it");
}

#[tokio::test]
async fn min_hold_and_max_hold_apply_to_each_task_that_shares() {
    let server = RedisServer::start();
    let [locks, writer] = connect_all(&server).await;
    let brief = shared().max_hold(Duration::from_millis(200));
    let (short, long) = (
        locks.acquire_free("k", brief).await,
        locks.acquire_free("k", shared()).await,
    );
    assert_eq!(short.lease().lost().await, LeaseLost::MaxHold);
    long.lease().verify().await.expect("another task's bound");
    let left = short.release().await;
    assert_fails!(left, LockError::Lost { .. });
    long.lease().verify().await.expect("it is still shared");
    long.release_held().await;
    // The server keeps the key for the longest `min_hold`, whichever task leaves last.
    let kept = locks
        .acquire_free("k", shared().min_hold(SECOND * 30))
        .await;
    let last = locks.acquire_free("k", shared()).await;
    kept.release_held().await;
    last.release_held().await;
    // The request ends the share that the process keeps, but the server keeps the key for `min_hold`.
    assert!(is_busy(&writer, options()).await);
    eventually(HANG, "the share is released", async || {
        let left = server.pttl(LOCK).expect("kept");
        left > SECOND * 20
    })
    .await;
    assert!(is_busy(&writer, options()).await);
}

#[tokio::test]
async fn leases_of_a_share_are_renewed_and_lost_with_the_share() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let short = LockOptions::new(SECOND * 2).shared();
    let (one, other) = (
        locks.acquire_free("k", short.clone()).await,
        locks.acquire_free("k", short.clone()).await,
    );
    let started = server.calls("zadd");
    eventually!(HANG, "it is renewed beyond its ttl" => server.calls("zadd") > started + 3);
    one.lease().verify().await.expect("held");
    server.cli(&["DEL", LOCK]);
    assert_eq!(one.lease().lost().await, LeaseLost::TakenAway);
    assert_eq!(other.lease().lost().await, LeaseLost::TakenAway);
    let again = locks.acquire_free("k", short).await;
    drop((one, other));
    again.lease().verify().await.expect("another share");
    again.release_held().await;
}

/// Otherwise a program that ends after its last call would block others for a ttl.
#[tokio::test]
async fn the_last_manager_releases_the_shares_that_it_keeps() {
    let server = RedisServer::start();
    let [locks, writer] = connect_all(&server).await;
    let guard = locks.acquire_free("k", shared()).await;
    guard.release_held().await;
    drop(locks);
    assert!(!is_busy(&writer, options()).await);

    let locks = connect(&server.url()).await;
    locks.acquire_free("k", shared()).await.release_held().await;
    locks.shutdown(Duration::ZERO).await;
    assert!(!is_busy(&writer, options()).await);
}

/// The entry in the queue keeps the ttl of the first task, which has left.
#[tokio::test]
async fn a_share_lasts_for_the_ttl_of_the_task_that_takes_it() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    server.cli(&["SET", LOCK, "mine", "NX", "PX", "60000"]);
    let short = LockOptions::new(Duration::from_millis(300)).shared();
    let first = in_queue(&server, &locks, short).await;
    let long = LockOptions::new(SECOND * 30).shared().wait(HANG);
    let mut second = pin!(locks.acquire_free("k", long));
    assert!(poll!(second.as_mut()).is_pending());
    first.abort();
    drop(first.await);
    server.cli(&["DEL", LOCK]);
    let guard = second.await;
    let left = server.pttl(LOCK).expect("held");
    assert!(left >= guard.lease().remaining(), "{left:?}");
    assert!(guard.lease().remaining() > SECOND * 20);
    guard.release_held().await;
}
