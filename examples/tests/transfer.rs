//! The example of two locks at once.

use lock_tests::{Process, RedisServer};

fn printed(lock_url: &str) -> String {
    let program = env!("CARGO_BIN_EXE_transfer");
    Process::spawn(program, &[], &[("LOCK_URL", lock_url)]).join()
}

/// The balances after a hundred transfers of 7 cents in one direction, and of 2 in the other.
const RIGHT: &str = "ann has 500 cents, ben has 1500";

#[test]
fn transfers_in_both_directions_end_and_keep_every_cent_only_with_locks() {
    let redis = RedisServer::start();
    for url in ["memory://", &*redis.url()] {
        let printed = printed(url);
        let result = |run: &str| printed.lines().find_map(|line| line.strip_prefix(run));
        assert_eq!(result("with locks: "), Some(RIGHT), "{printed}");
        let without = result("without locks: ").expect("both runs are shown");
        assert_ne!(without, RIGHT, "{printed}");
    }
}
