//! Checks the keys on the servers after all contenders have ended.

use std::{
    thread,
    time::{Duration, Instant},
};

use lock_tests::RedisServer;

use crate::topology::Servers;

/// Returns the keys that still exist after this time and should not: locks, and keys without an expiry, except for fencing
/// clocks.
pub(crate) fn leftovers(servers: &Servers, within: Duration) -> Vec<String> {
    let deadline = Instant::now() + within;
    loop {
        let is_late = Instant::now() >= deadline;
        let primaries = servers.primaries().into_iter();
        let found: Vec<String> = primaries.flat_map(on_one).collect();
        if found.is_empty() || is_late {
            return found;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn on_one(server: &RedisServer) -> Vec<String> {
    let keys = server.keys("*").into_iter();
    let wrong = keys.filter_map(|key| {
        let left = server.pttl(&key);
        // One such key exists for each database or slot, so that their number does not grow with the number of locks.
        let is_clock = key == "__lock_core__:watched"
            || key.starts_with("__lock_core__:")
                && (key.ends_with("clock") || key.ends_with("fence"));
        let is_companion = key.starts_with("__lock_core__:") && left.is_some();
        // The key may have expired between the two commands.
        let is_there = left.is_some() || server.keys(&key) == [key.as_str()];
        let is_wrong = is_there && !is_clock && !is_companion;
        is_wrong.then(|| {
            format!(
                "{key} is left on port {}, and expires in {left:?}",
                server.port()
            )
        })
    });
    wrong.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_and_keys_without_an_expiry_are_left_over_but_clocks_and_companions_are_not() {
        let server = RedisServer::start();
        server.set_fencing_clock("__lock_core__:clock", 7);
        server.cli(&["SET", "__lock_core__:waiters:lock:k", "x", "PX", "60000"]);
        assert!(on_one(&server).is_empty());
        server.cli(&["SET", "lock:k", "x", "PX", "60000"]);
        server.cli(&["SET", "__lock_core__:waiters:lock:other", "x"]);
        assert_eq!(on_one(&server).len(), 2);
    }
}
