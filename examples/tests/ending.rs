//! Every example that is a service shuts down gracefully on a signal.

use std::time::Duration;

use lock_tests::{Process, RedisServer, eventually_blocking};

/// Longer than any grace period, even on a machine that is busy with a build.
const SOON: Duration = Duration::from_secs(30);

const SERVICES: [&str; 7] = [
    env!("CARGO_BIN_EXE_actix"),
    env!("CARGO_BIN_EXE_flash_sale"),
    env!("CARGO_BIN_EXE_metrics"),
    env!("CARGO_BIN_EXE_orders"),
    env!("CARGO_BIN_EXE_payments"),
    env!("CARGO_BIN_EXE_reports"),
    env!("CARGO_BIN_EXE_tonic"),
];

/// Sends the signal right after the first line, which is the earliest moment at which an operator would send it.
fn assert_ends(lock_url: &str, signal: fn(&Process)) {
    for service in SERVICES {
        let variables = [("LOCK_URL", lock_url), ("PORT", "0")];
        let mut process = Process::spawn(service, &[], &variables);
        process.line();
        signal(&process);
        eventually_blocking(SOON, service, || process.ended().is_some());
        process.join();
    }
}

#[test]
fn each_service_ends_with_success_at_sigterm() {
    assert_ends("memory://", Process::terminate);
}

#[test]
fn each_service_ends_with_success_at_ctrl_c() {
    assert_ends("memory://", Process::interrupt);
}

/// The ten workers of `metrics` constantly compete for its locks.
#[test]
fn no_lock_is_left_on_a_server() {
    let redis = RedisServer::start();
    assert_ends(&redis.url(), Process::terminate);
    assert_eq!(redis.keys("lock:*"), [""; 0]);
}
