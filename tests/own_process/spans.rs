//! The spans and events in the log.
//!
//! The tests need a separate process, in which each thread that locks has a subscriber. `tracing` caches for the whole process whether
//! some subscriber wants an event: if a thread without a subscriber reaches it first, the event is off for all.

use std::time::Duration;

use axum::response::IntoResponse as _;
use lock_core::{
    LockError, LockManager, LockOptions, distributed_lock, key, set_global, with_locks,
};
use lock_tests::{AcquireFree as _, Log, SECOND};
use tokio::time::{Instant, advance, sleep};
use tracing::{Instrument as _, Level, subscriber::DefaultGuard};
use tracing_subscriber::fmt::format::FmtSpan;

/// Writes the events of this thread, and the ends of its spans, to a log, until the returned guard is dropped.
fn subscribe(log: &Log, level: Level) -> DefaultGuard {
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_default(subscriber)
}

#[tokio::test(start_paused = true)]
async fn spans_surround_the_body_and_show_the_times_of_wait_and_hold() {
    let log = Log::default();
    let _subscriber = subscribe(&log, Level::DEBUG);
    let locks = LockManager::in_memory();
    let options = || LockOptions::default();
    let guard = locks.acquire_free(key!("report"), options()).await;
    let token = guard.lease().fencing_token();
    let body = locks.run(key!("report"), options(), async |_| {
        tracing::info!("from the body");
        sleep(SECOND * 2).await;
    });
    let first = async {
        sleep(SECOND).await;
        drop(guard);
    };
    let (ran, ()) = tokio::join!(body, first);
    ran.expect("not lost");
    let text = log.text();
    let line = |words: &[&str]| {
        let found = text
            .lines()
            .find(|line| words.iter().all(|word| line.contains(word)));
        assert!(found.is_some(), "{words:?} in {text}");
    };
    line(&[
        "lock_wait{key=report template=\"report\" mode=\"exclusive\"}",
        "acquired",
        "waited=1s",
    ]);
    line(&[
        &format!(
            "lock_hold{{key=report template=\"report\" mode=\"exclusive\" fencing_token={token}}}"
        ),
        "released",
        "held=1s",
    ]);
    line(&["lock_hold{key=report", "from the body"]);
    line(&["lock_hold{key=report", "released", "held=2s"]);
    line(&["lock_hold{key=report", "close"]);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_runs_as_a_task_is_in_the_span_of_its_caller() {
    #[distributed_lock(key = "report", on_drop = finish)]
    async fn report() -> Result<(), LockError> {
        tracing::info!("from the body");
        Ok(())
    }

    let log = Log::default();
    let _subscriber = subscribe(&log, Level::INFO);
    let call = with_locks(LockManager::in_memory(), report());
    let called = call.instrument(tracing::info_span!("request")).await;
    called.expect("a free lock");
    let text = log.text();
    let is_inside = |line: &str| line.contains("request: ") && line.contains("from the body");
    assert!(text.lines().any(is_inside), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_a_warning_and_the_rest_has_lower_levels() {
    let log = Log::default();
    let _subscriber = subscribe(&log, Level::INFO);
    let locks = LockManager::in_memory();
    let guard = locks.acquire_free("report", LockOptions::default()).await;
    assert_eq!(log.text(), "");
    locks.force_release("report").await.expect("there");
    guard.lease().lost().await;
    let text = log.text();
    assert!(
        text.contains("WARN") && text.contains("lease lost key=report reason=the key is gone"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// The hold ends with the body. The reply to the release is logged when it arrives.
#[tokio::test(start_paused = true)]
async fn a_loss_that_the_release_finds_is_logged_even_in_the_background() {
    let in_background = LockOptions::default().release_in_background();
    for (options, reply) in [
        (LockOptions::default(), SECOND / 2),
        (in_background, Duration::ZERO),
    ] {
        let log = Log::default();
        let _subscriber = subscribe(&log, Level::DEBUG);
        let (locks, faults) = LockManager::in_memory_with_faults();
        let started = Instant::now();
        let body = async |_| {
            sleep(SECOND * 2).await;
            locks.force_release("report").await.expect("there");
            faults.delay(SECOND / 2);
        };
        let run = locks.run("report", options, body).await;
        run.expect("the body ended before it was known");
        assert_eq!(started.elapsed(), SECOND * 2 + reply);
        let logged = |text: &str| log.text().contains(text);
        assert!(logged("held=2s"), "{}", log.text());
        let warning = "the body has ended, but its lock could not be released key=report error=";
        assert_eq!(logged(warning), !reply.is_zero(), "{}", log.text());
        sleep(SECOND).await;
        assert!(logged("WARN") && logged(warning), "{}", log.text());
    }
}

/// The error of a service that logs nothing.
#[derive(Debug)]
struct Mute;

impl From<LockError> for Mute {
    fn from(_: LockError) -> Self {
        Self
    }
}

#[distributed_lock(key = "order:{id}", wait = "0s", locks = locks)]
async fn pay(locks: &LockManager, id: u64) -> Result<(), Mute> {
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_backend_log_one_line_a_second_even_if_the_service_logs_nothing() {
    let log = Log::default();
    let _subscriber = subscribe(&log, Level::INFO);
    let (locks, faults) = LockManager::in_memory_with_faults();
    faults.unavailable();
    for id in 0..4 {
        pay(&locks, id).await.expect_err("no backend");
    }
    let text = log.text();
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in ["WARN", "refused with 503", "`order:0`", "source="] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("not_logged"), "{text}");

    advance(SECOND).await;
    let by_hand = locks.acquire("by hand", LockOptions::default().no_wait());
    by_hand.await.expect_err("no backend");
    let several = locks.acquire_all(["a", "b"], LockOptions::default().no_wait());
    several.await.expect_err("no backend");
    let text = log.text();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(
        text.contains("`by hand`") && text.contains("not_logged=3"),
        "{text}"
    );

    advance(SECOND).await;
    pay(&locks, 7).await.expect_err("no backend");
    let text = log.text();
    assert!(
        text.contains("`order:7`") && text.contains("not_logged=1"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_becomes_a_response_is_logged_once() {
    let log = Log::default();
    let _subscriber = subscribe(&log, Level::INFO);
    let (locks, faults) = LockManager::in_memory_with_faults();
    let guard = locks.acquire_free("busy", LockOptions::default()).await;
    let tried = || LockOptions::default().no_wait();
    let busy = locks.run("busy", tried(), async |_| {}).await;
    assert_eq!(busy.expect_err("held").into_response().status(), 409);
    drop(guard);
    faults.unavailable();
    let refused = locks.run("order:7", tried(), async |_| {}).await;
    let response = refused.expect_err("no backend").into_response();
    assert_eq!(response.status(), 503);
    let text = log.text();
    assert_eq!(text.lines().count(), 1, "{text}");

    // This error comes from no acquire.
    assert_eq!(LockError::NotConfigured.into_response().status(), 500);
    let text = log.text();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("refused with 500"), "{text}");
}

/// The event is about guards that nothing read, and that were dropped in the millisecond in which they were made.
#[tokio::test(start_paused = true)]
#[expect(
    clippy::let_underscore_must_use,
    reason = "the mistake that the event is about"
)]
async fn a_guard_that_is_dropped_in_its_statement_is_logged() {
    let log = Log::default();
    let _subscriber = subscribe(&log, Level::DEBUG);
    let locks = LockManager::in_memory();
    let logged = || log.text().matches("released at once").count();
    let acquire = || locks.acquire("report", LockOptions::default());
    let _ = acquire().await.expect("free");
    assert_eq!(logged(), 1, "{}", log.text());
    let _ = locks.acquire_all(["a", "b"], LockOptions::default()).await;
    assert_eq!(logged(), 2, "{}", log.text());
    // These guards are held for longer, read, or released.
    let guard = acquire().await.expect("free");
    sleep(SECOND / 1_000).await;
    drop(guard);
    assert!(!acquire().await.expect("free").lease().is_lost());
    acquire()
        .await
        .expect("free")
        .release()
        .await
        .expect("held");
    // In these calls, the user has no guard.
    let run = locks.run("report", LockOptions::default(), async |_| {});
    run.await.expect("free");
    let busy = locks.acquire_free("b", LockOptions::default()).await;
    let all = locks
        .acquire_all(["a", "b"], LockOptions::default().no_wait())
        .await;
    assert!(all.is_err_and(|error| error.is_busy()));
    assert!(!busy.lease().is_lost());
    assert_eq!(logged(), 2, "{}", log.text());
}

/// Only builds with debug assertions log it, such as those of tests.
#[tokio::test(start_paused = true)]
async fn each_template_that_is_passed_as_a_key_is_logged_once() {
    let log = Log::default();
    let _subscriber = subscribe(&log, Level::DEBUG);
    let locks = LockManager::in_memory();
    let logged = || log.text().matches("not a template").count();
    let options = LockOptions::default;
    for _ in 0..2 {
        drop(locks.acquire_free("order:{id}", options()).await);
        locks
            .run("order:{id}", options(), async |_| {})
            .await
            .expect("free");
    }
    assert_eq!(logged(), 1, "{}", log.text());
    assert!(log.text().contains("WARN") && log.text().contains("key=order:{id}"));
    let listed = locks
        .acquire_all(["{shop.name}:{id:04}", "b"], options())
        .await;
    listed.expect("free").release().await.expect("held");
    assert_eq!(logged(), 2, "{}", log.text());
    for other in [
        "order:{42}",
        "order:{}",
        "order:{a b}",
        "order:}id{",
        "{order:id",
    ] {
        drop(locks.acquire_free(other, options()).await);
    }
    drop(locks.acquire_free(key!("order:{{id}}"), options()).await);
    assert_eq!(logged(), 2, "{}", log.text());
    every_call_that_takes_a_key_logs_a_template(&log).await;
    // A program whose data look like templates does not flood its log.
    for n in 0..1_000 {
        drop(locks.acquire_free(format!("{{user{n}}}"), options()).await);
    }
    assert!(logged() <= 64, "{}", logged());
}

/// Otherwise, a test that makes `order:{id}` busy would pass without testing anything.
async fn every_call_that_takes_a_key_logs_a_template(log: &Log) {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let is_logged = |key: &str| {
        let (text, key) = (log.text(), format!("key={key}"));
        let is_it = |line: &str| line.contains("not a template") && line.ends_with(&key);
        assert!(text.lines().any(is_it), "{key}: {text}");
    };
    locks.inspect("inspected:{id}").await.expect("in memory");
    is_logged("inspected:{id}");
    locks.force_release("freed:{id}").await.expect("in memory");
    is_logged("freed:{id}");
    locks.forget("forgotten:{id}").await.expect("in memory");
    is_logged("forgotten:{id}");
    faults.busy("busy:{id}");
    is_logged("busy:{id}");
    faults.busy_for("soon:{id}", SECOND);
    is_logged("soon:{id}");
    faults.forget("result:{id}");
    is_logged("result:{id}");
}

/// Nothing is logged if no manager is replaced, or the same one, or one that was shut down.
#[tokio::test]
async fn a_second_global_manager_is_logged() {
    let log = Log::default();
    let _subscriber = subscribe(&log, Level::INFO);
    let (first, second) = (LockManager::in_memory(), LockManager::in_memory());
    assert!(set_global(first.clone()).is_none());
    drop(set_global(first));
    assert_eq!(log.text(), "");
    drop(set_global(second.clone()));
    assert!(log.text().contains("WARN") && log.text().contains("`set_global` replaced a manager"));
    second.shutdown(SECOND).await;
    drop(set_global(LockManager::in_memory()));
    assert_eq!(log.text().lines().count(), 1, "{}", log.text());
}

/// The url comes from a configuration, where it may have been meant for development only.
#[tokio::test]
async fn connecting_to_memory_logs_that_it_excludes_only_inside_this_process() {
    let log = Log::default();
    let _subscriber = subscribe(&log, Level::INFO);
    drop(LockManager::connect("memory://").await.expect("in memory"));
    let text = log.text();
    assert!(
        text.contains("INFO") && text.contains("exclude only tasks of this process"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
}
