//! The spans and events in the log, by key.
//!
//! The test needs a separate process, in which each thread that locks has a subscriber. `tracing` stores for the whole process
//! whether a line is of interest. If a thread without a subscriber reaches the line first, the line is off for all.

use std::time::Duration;

use axum::response::IntoResponse as _;
use lock_core::{
    LockError, LockManager, LockOptions, distributed_lock, key, set_global, with_locks,
};
use lock_tests::{AcquireFree as _, Log, SECOND};
use tokio::time::{Instant, advance, sleep};
use tracing::{Instrument as _, subscriber::DefaultGuard};
use tracing_subscriber::fmt::format::FmtSpan;

/// Writes the events of this thread to a log, until the result is dropped.
fn listens(log: &Log) -> DefaultGuard {
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_default(subscriber)
}

fn listens_at_the_default_level(log: &Log) -> DefaultGuard {
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_default(subscriber)
}

#[tokio::test(start_paused = true)]
async fn spans_say_how_long_it_waited_and_held_and_stand_around_the_body() {
    let log = Log::default();
    let _listens = listens(&log);
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
    let line = |says: &[&str]| {
        let found = text
            .lines()
            .find(|line| says.iter().all(|word| line.contains(word)));
        assert!(found.is_some(), "{says:?} in {text}");
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
    let _listens = listens_at_the_default_level(&log);
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
    let _listens = listens_at_the_default_level(&log);
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

/// The hold ends with the body. The reply to the release is logged when it comes.
#[tokio::test(start_paused = true)]
async fn a_lease_that_its_release_finds_lost_is_logged_also_in_the_background() {
    let behind = LockOptions::default().release_in_background();
    for (options, reply) in [
        (LockOptions::default(), SECOND / 2),
        (behind, Duration::ZERO),
    ] {
        let log = Log::default();
        let _listens = listens(&log);
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
async fn requests_without_a_backend_leave_one_line_a_second_also_if_the_service_logs_nothing() {
    let log = Log::default();
    let _listens = listens_at_the_default_level(&log);
    let (locks, faults) = LockManager::in_memory_with_faults();
    faults.unavailable();
    for id in 0..4 {
        pay(&locks, id).await.expect_err("no backend");
    }
    let text = log.text();
    assert_eq!(text.lines().count(), 1, "{text}");
    for says in ["WARN", "refused with 503", "`order:0`", "source="] {
        assert!(text.contains(says), "{says} in {text}");
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
async fn a_refusal_is_logged_once_though_it_becomes_a_response() {
    let log = Log::default();
    let _listens = listens_at_the_default_level(&log);
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

    // No acquire has seen this one.
    assert_eq!(LockError::NotConfigured.into_response().status(), 500);
    let text = log.text();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("refused with 500"), "{text}");
}

/// A guard that nothing looked at, and that was dropped in the millisecond in which it was made.
#[tokio::test(start_paused = true)]
#[expect(
    clippy::let_underscore_must_use,
    reason = "the mistake that the event is about"
)]
async fn a_guard_that_is_dropped_in_its_statement_is_logged() {
    let log = Log::default();
    let _listens = listens(&log);
    let locks = LockManager::in_memory();
    let logged = || log.text().matches("released at once").count();
    let acquire = || locks.acquire("report", LockOptions::default());
    let _ = acquire().await.expect("free");
    assert_eq!(logged(), 1, "{}", log.text());
    let _ = locks.acquire_all(["a", "b"], LockOptions::default()).await;
    assert_eq!(logged(), 2, "{}", log.text());
    // Held for longer, looked at, or released.
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
    // No guard of the user's.
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

/// Once for each text, in builds with debug assertions, as those of tests are.
#[tokio::test(start_paused = true)]
async fn a_template_that_is_passed_by_hand_is_logged_once() {
    let log = Log::default();
    let _listens = listens(&log);
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
    a_template_by_hand_is_logged_by_each_call_that_takes_a_key(&log).await;
    // A program that makes such keys of its data is not flooded.
    for n in 0..1_000 {
        drop(locks.acquire_free(format!("{{user{n}}}"), options()).await);
    }
    assert!(logged() <= 64, "{}", logged());
}

/// Not only by calls that lock: else a test that makes `order:{id}` busy passes without having tested anything.
async fn a_template_by_hand_is_logged_by_each_call_that_takes_a_key(log: &Log) {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let is_logged = |key: &str| {
        let (text, key) = (log.text(), format!("key={key}"));
        let is_meant = |line: &str| line.contains("not a template") && line.ends_with(&key);
        assert!(text.lines().any(is_meant), "{key}: {text}");
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

/// The same manager again, one that was shut down, and none are nothing to warn of.
#[tokio::test]
async fn a_second_global_manager_is_logged() {
    let log = Log::default();
    let _listens = listens_at_the_default_level(&log);
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
async fn connecting_to_memory_says_that_it_excludes_inside_this_process_only() {
    let log = Log::default();
    let _listens = listens_at_the_default_level(&log);
    drop(LockManager::connect("memory://").await.expect("in memory"));
    let text = log.text();
    assert!(
        text.contains("INFO") && text.contains("exclude only tasks of this process"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
}
