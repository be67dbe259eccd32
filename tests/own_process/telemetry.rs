//! The metrics, by template. Spans and events are in `spans.rs`.
//!
//! The tests need a separate process, since one of them installs the recorder of the whole process.

use std::{collections::BTreeMap, sync::OnceLock, time::Duration};

use futures_util::{StreamExt as _, stream};
use lock_core::{
    LockError, LockManager, LockOptions, OnceOptions, distributed_lock, key, with_locks,
};
use lock_tests::{
    AcquireFree as _, HANG, RedisServer, ReleaseHeld as _, SECOND, connect, connect_in_some_tries,
    eventually, patient,
};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

/// The value of each counter and gauge, by name and labels. A histogram has its sum there, and its count under the name with `#`.
type Figures = BTreeMap<String, f64>;

/// Returns all figures since the last snapshot: a snapshot resets histograms and counters.
fn figures(of: &Snapshotter) -> Figures {
    let mut figures = Figures::new();
    for (key, _, _, value) in of.snapshot().into_vec() {
        let labels: Vec<_> = key
            .key()
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        let name = format!("{}{{{}}}", key.key().name(), labels.join(","));
        #[expect(clippy::cast_precision_loss, reason = "the counts are small")]
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(now) => now.into_inner(),
            DebugValue::Histogram(values) => {
                figures.insert(format!("#{name}"), values.len() as f64);
                values.iter().map(|value| value.into_inner()).sum()
            }
        };
        figures.insert(name, value);
    }
    figures
}

/// Compares figures that have these labels. After a comma, a name may have further labels.
#[track_caller]
fn assert_figures(figures: &Figures, labels: &str, expected: &[(&str, f64)]) {
    for (name, value) in expected {
        let name = match name.split_once(',') {
            Some((name, more)) => format!("{name}{{{labels},{more}}}"),
            None => format!("{name}{{{labels}}}"),
        };
        let recorded = figures.get(&name).copied();
        assert!(
            recorded.is_some_and(|recorded| (recorded - value).abs() < 1e-6),
            "{name}: {value} expected in {figures:#?}"
        );
    }
}

#[distributed_lock(key = "order:{order_id}", ttl = "10s", wait = "2s")]
async fn charge(order_id: u64, takes: Duration) -> Result<(), LockError> {
    sleep(takes).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_wait_and_a_hold_are_counted_and_timed() {
    let recorder = DebuggingRecorder::new();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let locks = LockManager::in_memory();
    let takes = Duration::from_millis(5);
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        tasks.spawn(with_locks(locks.clone(), charge(7, takes)));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic").expect("all get it");
    }
    assert_figures(
        &figures(&recorder.snapshotter()),
        "key=order:{order_id},mode=exclusive",
        &[
            ("#lock_wait_seconds", 4.0),
            ("lock_wait_seconds", 0.030),
            ("#lock_hold_seconds", 4.0),
            ("lock_hold_seconds", 0.020),
            ("lock_acquired_total", 4.0),
            ("lock_waiting", 0.0),
            ("lock_held", 0.0),
            // The second task prefetches tokens for the later ones, which then need no reply from the backend.
            ("lock_handoffs_total,kind=local", 2.0),
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn gauges_count_waiters_and_holders() {
    let recorder = DebuggingRecorder::new();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let locks = LockManager::in_memory();
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        tasks.spawn(with_locks(locks.clone(), charge(7, SECOND)));
    }
    tokio::task::yield_now().await;
    assert_figures(
        &figures(&recorder.snapshotter()),
        "key=order:{order_id},mode=exclusive",
        &[("lock_waiting", 2.0), ("lock_held", 1.0)],
    );
}

#[tokio::test(start_paused = true)]
async fn each_call_for_a_body_that_runs_once_is_counted_by_its_outcome() {
    let recorder = DebuggingRecorder::new();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let (locks, faults) = LockManager::in_memory_with_faults();
    let order = 7;
    let run = async |of: u32| {
        let options = OnceOptions::keep(SECOND * 60).fingerprint(&of);
        let body = async |_| {
            if of == 9 {
                faults.unavailable();
            }
            Ok::<_, String>(())
        };
        let key = key!("charge:{order}");
        locks.run_once(key, options, body).await.is_ok()
    };
    assert!(run(1).await && run(1).await && run(1).await);
    assert!(!run(2).await, "another request");
    faults.forget("charge:7");
    assert!(run(9).await, "the runner has its value");
    let all = figures(&recorder.snapshotter());
    assert!(
        !all.keys().any(|name| name.contains("abandoned")),
        "{all:?}"
    );
    assert_figures(
        &all,
        "key=charge:{order}",
        &[
            ("lock_once_total,outcome=ran", 1.0),
            ("lock_once_total,outcome=replayed", 2.0),
            ("lock_once_total,outcome=refused", 1.0),
            ("lock_once_total,outcome=not_stored", 1.0),
        ],
    );
    assert_figures(
        &all,
        "key=charge:{order},mode=exclusive",
        &[
            // Calls that got a result neither acquired the lock nor gave up.
            ("lock_acquired_total", 2.0),
            ("#lock_wait_seconds", 5.0),
            ("lock_waiting", 0.0),
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn each_acquire_without_success_is_counted_once() {
    let recorder = DebuggingRecorder::new();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let locks = LockManager::builder().max_waiting(1).in_memory();
    let options = || LockOptions::new(SECOND * 10).wait(SECOND);
    let template = || key!("stock");
    let guard = locks.acquire_free(template(), options()).await;

    let busy = locks.acquire(template(), options()).await;
    assert!(busy.is_err_and(|error| error.is_busy()));
    let tried = locks.try_acquire(template(), options()).await;
    assert!(tried.is_ok_and(|guard| guard.is_none()));
    let stopped = timeout(SECOND / 2, locks.acquire(template(), options())).await;
    assert!(stopped.is_err());
    {
        let mut waits = Box::pin(locks.acquire(template(), options()));
        assert!(futures_util::poll!(&mut waits).is_pending());
        let too_many = locks.acquire(template(), options()).await;
        assert!(matches!(too_many, Err(LockError::Unavailable { .. })));
    }
    drop(guard);
    let figures = figures(&recorder.snapshotter());
    assert_figures(
        &figures,
        "key=stock,mode=exclusive",
        &[
            ("lock_busy_total", 2.0),
            ("lock_abandoned_total", 2.0),
            ("lock_unavailable_total", 1.0),
            ("lock_acquired_total", 1.0),
            ("lock_waiting", 0.0),
            ("lock_held", 0.0),
            ("#lock_wait_seconds", 6.0),
            ("lock_wait_seconds", 1.5),
        ],
    );
}

#[tokio::test]
async fn a_request_that_an_outage_refuses_at_once_counts_as_a_wait() {
    let server = RedisServer::start();
    let builder = LockManager::builder()
        .command_timeout(SECOND / 5)
        .connect_timeout(SECOND / 5)
        .fail_fast_after(SECOND / 10);
    let locks = connect_in_some_tries(&builder, &server.url()).await;
    server.kill9();
    let recorder = DebuggingRecorder::new();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let mut calls = 0.0;
    eventually(HANG, "a request is refused at once", async || {
        calls += 1.0;
        let options = LockOptions::default().wait(SECOND / 10);
        let refused = locks.acquire(key!("stock"), options).await;
        let Err(LockError::Unavailable { source, .. }) = refused else {
            panic!("{refused:?}");
        };
        source.to_string().contains("fail_fast_after")
    })
    .await;
    assert_figures(
        &figures(&recorder.snapshotter()),
        "key=stock,mode=exclusive",
        &[
            ("lock_unavailable_total", calls),
            ("#lock_wait_seconds", calls),
            ("lock_waiting", 0.0),
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn there_are_as_many_labels_as_templates_whatever_the_keys() {
    let recorder = DebuggingRecorder::new();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let locks = LockManager::in_memory();
    for order_id in 0..100 {
        with_locks(locks.clone(), charge(order_id, Duration::ZERO))
            .await
            .expect("free");
        let key = format!("by hand {order_id}");
        drop(locks.acquire_free(key, LockOptions::default()).await);
    }
    let figures = figures(&recorder.snapshotter());
    assert_figures(
        &figures,
        "key=order:{order_id},mode=exclusive",
        &[("lock_acquired_total", 100.0)],
    );
    assert_figures(
        &figures,
        "key=other,mode=exclusive",
        &[("lock_acquired_total", 100.0)],
    );
    let labels = figures
        .keys()
        .filter(|name| name.starts_with("lock_acquired_total"))
        .count();
    assert_eq!(labels, 2, "{figures:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_is_counted_by_its_reason() {
    let recorder = DebuggingRecorder::new();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let locks = LockManager::in_memory();
    let guard = locks
        .acquire_free(key!("report"), LockOptions::default())
        .await;
    locks.force_release("report").await.expect("there");
    guard.lease().lost().await;
    let bounded = LockOptions::default().max_hold(SECOND);
    let hangs = locks
        .run(key!("report"), bounded, |_| std::future::pending::<()>())
        .await;
    assert!(matches!(hangs, Err(LockError::Lost { .. })));
    let released = locks
        .acquire_free(key!("late"), LockOptions::default())
        .await;
    locks.force_release("late").await.expect("there");
    released
        .release()
        .await
        .expect_err("only the release finds the loss");
    let figures = figures(&recorder.snapshotter());
    assert_figures(
        &figures,
        "key=report,mode=exclusive",
        &[
            ("lock_lost_total,reason=taken_away", 1.0),
            ("lock_lost_total,reason=max_hold", 1.0),
        ],
    );
    assert_figures(
        &figures,
        "key=late,mode=exclusive",
        &[("lock_lost_total,reason=taken_away", 1.0)],
    );
}

#[tokio::test(start_paused = true)]
async fn gauges_return_to_zero_however_waits_and_holds_end() {
    let recorder = DebuggingRecorder::new();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let (locks, faults) = LockManager::in_memory_with_faults();
    let options = || LockOptions::new(SECOND * 10).wait(SECOND);
    let free = async || locks.acquire_free("k", options()).await;

    // The lock is taken again in its own body.
    let again = locks.run("k", options(), async |_| drop(free().await));
    again.await.expect("not lost");
    // Several keys: first one of them is busy, then none.
    let busy = locks.acquire_free("b", options()).await;
    let refused = locks.acquire_all(["a", "b"], options()).await;
    assert!(refused.is_err_and(|error| error.is_busy()));
    drop(busy);
    let several = locks.run_all(["a", "b"], options(), async |_| {});
    several.await.expect("not lost");
    // The body panics.
    let panicking = locks.clone();
    let panicked = tokio::spawn(async move {
        let body = async |_| panic!("in the body");
        panicking.run("k", LockOptions::default(), body).await
    });
    assert!(panicked.await.is_err());
    // The future is dropped at each of its awaits.
    for polls in 0..5 {
        let held = free().await;
        let mut runs = Box::pin(locks.run("k", options(), async |_| sleep(SECOND).await));
        for _ in 0..polls {
            assert!(futures_util::poll!(&mut runs).is_pending());
            tokio::task::yield_now().await;
        }
        drop(held);
        for _ in 0..polls {
            drop(futures_util::poll!(&mut runs));
            tokio::task::yield_now().await;
        }
    }
    // A lease is lost, alone and together with another.
    let lost = locks
        .acquire_all(["k", "l"], options())
        .await
        .expect("free");
    faults.lose("k");
    drop(lost);
    // A grant is not polled for so long that the lock passes to the next waiter, or to none.
    for taken in [true, false] {
        let held = free().await;
        let mut waits = Box::pin(locks.acquire("k", options().wait_forever()));
        assert!(futures_util::poll!(&mut waits).is_pending());
        drop(held);
        sleep(SECOND * 8).await;
        if taken {
            drop(waits.await.expect("granted again"));
        }
    }
    // A stream holds the lock.
    let mut stream = free()
        .await
        .hold_during(stream::iter([Ok::<_, LockError>(1)]));
    while stream.next().await.is_some() {}
    // A shutdown ends a holder and a waiter.
    let held = free().await;
    let waiting = locks.clone();
    let waits = tokio::spawn(async move { waiting.acquire("k", LockOptions::default()).await });
    tokio::task::yield_now().await;
    locks.shutdown(Duration::ZERO).await;
    drop(held);
    assert!(waits.await.expect("no panic").is_err());

    let figures = figures(&recorder.snapshotter());
    assert_figures(
        &figures,
        "key=other,mode=exclusive",
        &[("lock_waiting", 0.0), ("lock_held", 0.0)],
    );
    let holds = figures["lock_acquired_total{key=other,mode=exclusive}"];
    assert_figures(
        &figures,
        "key=other,mode=exclusive",
        &[("#lock_hold_seconds", holds)],
    );
}

/// A recorder that panics when one of these metrics is recorded.
struct Broken(&'static [&'static str]);

impl Broken {
    fn note(&self, key: &Key) {
        assert!(!self.0.contains(&key.name()), "a broken recorder");
    }
}

impl Recorder for Broken {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.note(key);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.note(key);
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.note(key);
        Histogram::noop()
    }
}

#[tokio::test(start_paused = true)]
async fn a_recorder_that_panics_during_a_hand_off_costs_no_lock() {
    let broken = Broken(&[
        "lock_hold_seconds",
        "lock_lost_total",
        "lock_handoffs_total",
        "lock_abandoned_total",
    ]);
    let _recorder = metrics::set_default_local_recorder(&broken);
    let (locks, faults) = LockManager::in_memory_with_faults();
    let options = || LockOptions::new(SECOND * 10).wait(SECOND);
    let free = async || locks.acquire_free("k", options()).await;
    // The lock is released, first without a waiter, then to the next task.
    free().await.release_held().await;
    let held = free().await;
    let (next, ()) = tokio::join!(locks.acquire("k", options()), async { drop(held) });
    let next = next.expect("its turn");
    // The lease is lost while another task waits.
    let waits = locks.acquire("k", options());
    let (waited, ()) = tokio::join!(waits, async { faults.lose("k") });
    waited.expect("its turn").release_held().await;
    drop(next);
    // The lock comes from another process.
    faults.busy_for("k", SECOND / 2);
    let from_there = free().await;
    let tried = locks.try_acquire("k", options()).await;
    assert!(tried.is_ok_and(|guard| guard.is_none()));
    // A wait is dropped.
    let waits = locks.acquire("k", options());
    assert!(timeout(SECOND / 2, waits).await.is_err());
    from_there.release_held().await;
    drop(free().await);
}

/// The recorder of the whole process, since the manager of a server records on its own thread.
fn everything() -> &'static Snapshotter {
    static ALL: OnceLock<Snapshotter> = OnceLock::new();
    ALL.get_or_init(|| {
        let recorder = DebuggingRecorder::new();
        let all = recorder.snapshotter();
        recorder.install().expect("the only one");
        all
    })
}

#[tokio::test]
async fn a_lock_that_comes_from_another_process_is_a_remote_hand_off() {
    let all = everything();
    let server = RedisServer::start();
    // Two managers compete as two processes do.
    let (here, there) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = there.acquire_free("shared", patient()).await;
    let waits = tokio::spawn(async move { here.acquire(key!("shared"), patient()).await });
    eventually(HANG, "the task is in the queue of the server", async || {
        let info = there.inspect("shared").await.expect("up").expect("held");
        info.waiters == 1
    })
    .await;
    guard.release_held().await;
    waits
        .await
        .expect("no panic")
        .expect("granted")
        .release_held()
        .await;
    // All of them are recorded before the reply to the release.
    assert_figures(
        &figures(all),
        "key=shared,mode=exclusive",
        &[
            ("lock_handoffs_total,kind=remote", 1.0),
            ("lock_acquired_total", 1.0),
            ("lock_held", 0.0),
            ("lock_waiting", 0.0),
        ],
    );
}
