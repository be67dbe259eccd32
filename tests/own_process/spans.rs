//! The spans and events in the log, by key.
//!
//! The test needs a separate process, in which each thread that locks has a subscriber. `tracing` stores for the whole process
//! whether a line is of interest. If a thread without a subscriber reaches the line first, the line is off for all.

use std::time::Duration;

use axum::response::IntoResponse as _;
use lock_core::{LockError, LockManager, LockOptions, distributed_lock, key, with_locks};
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
        let warning = "the body ended, but the release of its lock failed key=report error=";
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
    let logged = || log.text().matches("no template").count();
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
    // A program that makes such keys of its data is not flooded.
    for n in 0..1_000 {
        drop(locks.acquire_free(format!("{{user{n}}}"), options()).await);
    }
    assert!(logged() <= 64, "{}", logged());
}
