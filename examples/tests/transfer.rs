//! The example of two locks at once.

use lock_tests::{Process, RedisServer};

fn told(lock_url: &str) -> String {
    let program = env!("CARGO_BIN_EXE_transfer");
    Process::spawn(program, &[], &[("LOCK_URL", lock_url)]).join()
}

/// What a hundred transfers of 7 cents in one direction, and of 2 in the other, come to.
const RIGHT: &str = "ann has 500 cents, ben has 1500: 2000 in all\n";

#[test]
fn transfers_in_both_directions_end_and_keep_every_cent() {
    assert_eq!(told("memory://"), RIGHT);
    assert_eq!(told(&RedisServer::start().url()), RIGHT);
}
