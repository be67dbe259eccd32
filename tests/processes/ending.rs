//! Processes that end right after dropping a guard.

use lock_tests::{Process, RedisServer};

#[test]
fn a_guard_that_is_dropped_right_before_main_returns_leaves_no_key() {
    let server = RedisServer::start();
    for place in ["main", "task", "blocked-task"] {
        // Several rounds, because the end of `main` races with the release.
        for round in 0..20 {
            let key = format!("{place}:{round}");
            let arguments = [&*server.url(), &key, place];
            Process::spawn(env!("CARGO_BIN_EXE_leaver"), &arguments, &[]).join();
            assert!(server.keys("lock:*").is_empty(), "{key}");
        }
    }
}
