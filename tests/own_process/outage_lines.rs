//! The log at the default level during an outage of a server.
//!
//! The test needs a separate process: the lines come from the threads of managers, so it installs the subscriber and the recorder of the
//! whole process.

use lock_core::{LeaseLost, LockError, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, HANG, Log, RedisServer, ReleaseHeld as _, SECOND, connect, eventually,
};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::sync::oneshot;

/// Returns the lines with this text, at the levels that are shown by default.
fn lines(log: &Log, wanted: &str) -> Vec<String> {
    let text = log.text();
    let shown = |line: &&str| {
        ["WARN", "INFO", "ERROR"]
            .iter()
            .any(|level| line.contains(level))
    };
    let lines = text.lines().filter(shown);
    lines
        .filter(|line| line.contains(wanted))
        .map(str::to_owned)
        .collect()
}

/// Waits for a line with this text, and returns it.
async fn logged(log: &Log, text: &str) -> String {
    let what = format!("the log has {text:?}");
    eventually!(HANG, &what => !lines(log, text).is_empty());
    lines(log, text).remove(0)
}

fn is_connected(snapshotter: &Snapshotter, server: &str) -> Option<bool> {
    let figures = snapshotter.snapshot().into_vec();
    let gauge = figures.into_iter().find(|(key, ..)| {
        let mut labels = key.key().labels();
        key.key().name() == "lock_connected" && labels.any(|label| label.value() == server)
    });
    gauge.map(|(_, _, _, value)| match value {
        DebugValue::Gauge(now) => now.into_inner() > 0.5,
        other => panic!("not a gauge: {other:?}"),
    })
}

/// Returns the number of threads of this process.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
    tasks.count()
}

async fn renewed_lease_is_lost(locks: &LockManager, entered: oneshot::Sender<()>) -> LockError {
    // Longer than the first attempt to connect takes, even on a busy machine: the line about the outage must count this lease.
    let options = LockOptions::new(SECOND * 6);
    let body = async |_| {
        entered.send(()).expect("the test waits");
        std::future::pending::<()>().await;
    };
    let run = locks.run("short", options, body).await;
    run.expect_err("no server")
}

#[tokio::test]
async fn an_outage_is_logged_at_its_start_and_end_and_a_lost_lease_names_its_cause() {
    let log = Log::of_the_process();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().expect("the only one");

    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let idle = connect(&server.url()).await;
    let dropped = connect(&server.url()).await;
    let guard = locks
        .acquire_free("held", LockOptions::new(SECOND * 60))
        .await;
    let (entered, inside) = oneshot::channel();
    let losing = tokio::spawn({
        let locks = locks.clone();
        async move { renewed_lease_is_lost(&locks, entered).await }
    });
    // The server may have the key before the reply has arrived.
    inside.await.expect("both are held");
    assert_eq!(is_connected(&snapshotter, &server.url()), Some(true));
    assert!(lines(log, "out of reach").is_empty());
    server.kill9();

    // The managers without leases may log it first.
    let line = logged(log, "leases_held=2").await;
    for part in [
        "WARN",
        &server.url(),
        "out of reach",
        "first_ends_in=",
        "cause=",
    ] {
        assert!(line.contains(part), "{part} in {line}");
    }
    let error = losing.await.expect("no panic");
    let LockError::Lost { reason, .. } = &error else {
        panic!("not lost: {error:?}");
    };
    assert_eq!(*reason, LeaseLost::Expired);
    assert!(error.to_string().contains("the last failure: "), "{error}");
    let line = logged(log, "lease lost").await;
    assert!(line.contains("failure=\""), "{line}");
    assert_eq!(is_connected(&snapshotter, &server.url()), Some(false));

    // If a manager ends during the outage, the gauge still shows that others cannot connect.
    eventually!(HANG, "all three log it" => lines(log, "out of reach").len() == 3);
    let before = threads();
    drop(dropped);
    eventually(
        HANG,
        "the thread of the dropped manager has ended",
        async || threads() < before,
    )
    .await;
    assert_eq!(is_connected(&snapshotter, &server.url()), Some(false));

    // No task makes a request meanwhile.
    server.restart();
    let line = logged(log, "reached again").await;
    for part in [
        "INFO",
        &server.url(),
        "away=",
        "was restarted",
        "locks included",
    ] {
        assert!(line.contains(part), "{part} in {line}");
    }
    // Each manager that is left has one line at the start and one at the end, and none in between.
    eventually!(HANG, "both log it" => lines(log, "reached again").len() == 2);
    assert_eq!(lines(log, "out of reach").len(), 3, "{}", log.text());
    assert_eq!(is_connected(&snapshotter, &server.url()), Some(true));
    guard
        .release()
        .await
        .expect_err("the server came back empty");
    locks
        .acquire_free("held", LockOptions::default())
        .await
        .release_held()
        .await;
    drop(idle);
}
