//! Tests of a server that is out of memory and evicts one of the keys of a lock.

use lock_tests::scripts::{ACQUIRE, RELEASE, RENEW};

use super::server_view::{CLOCK, HOLDERS, KEYS, LOCK, PERMITS, QUEUE};
use crate::model::{Reply, Server};

const START_US: i64 = 1_700_000_000_000_000;

/// A server, and its time in microseconds.
struct Evicting(Server, i64);

impl Evicting {
    fn new() -> Self {
        Self(Server::default(), START_US)
    }

    fn run(&mut self, text: &str, arguments: &[&str]) -> Reply {
        let hash = sha1_smol::Sha1::from(text).digest().to_string();
        let bytes = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect();
        let (keys, arguments): (Vec<_>, Vec<_>) = (bytes(&KEYS), bytes(arguments));
        self.1 += 1000;
        let script = (hash.as_str(), text.as_bytes());
        self.0.run_script(script, &keys, &arguments, self.1).0
    }

    fn acquire(&mut self, token: &str, ttl: &str, kind: &str) -> Reply {
        let entry = format!("c 1 {ttl} {kind}");
        self.run(ACQUIRE, &[token, ttl, "0", "1", "try", &entry])
    }

    fn release(&mut self, token: &str, ttl: &str, kind: &str) -> Reply {
        let entry = format!("c 1 {ttl} {kind}");
        self.run(RELEASE, &[token, "0", "0", &entry])
    }

    fn evict(&mut self, key: &str) {
        let gone = self.0.command(&["DEL", key], self.1);
        assert_eq!(gone, Reply::Int(1), "{key} exists");
    }

    fn remaining(&mut self) -> i64 {
        match self.0.command(&["PTTL", LOCK], self.1) {
            Reply::Int(remaining) => remaining,
            other => panic!("not a number: {other:?}"),
        }
    }
}

fn is_granted(reply: &Reply) -> bool {
    matches!(reply, Reply::Array(words) if words.first() == Some(&Reply::Int(1)))
}

/// The first reader does not know that the server has forgotten it.
#[test]
fn an_evicted_reader_excludes_writers_until_its_lease_ends() {
    let mut server = Evicting::new();
    assert!(is_granted(&server.acquire("lc1:a:1", "60000", "s")));
    server.evict(HOLDERS);
    assert!(is_granted(&server.acquire("lc1:a:2", "5000", "s")));
    let before = server.remaining();
    assert!(before > 59_000, "the marker is not shortened: {before}");
    assert_eq!(server.release("lc1:a:2", "5000", "s"), Reply::Int(1));
    let after = server.remaining();
    assert!(
        after > 59_000,
        "the marker is neither shortened nor deleted: {after}"
    );
    assert!(!is_granted(&server.acquire("lc1:a:3", "1000", "x")));
    server.1 += 61_000_000;
    assert!(is_granted(&server.acquire("lc1:a:3", "1000", "x")));
}

#[test]
fn evicted_permits_admit_no_request_until_their_release() {
    for evicted in [PERMITS, HOLDERS] {
        let mut server = Evicting::new();
        assert!(is_granted(&server.acquire("lc1:a:1", "60000", "3")));
        server.evict(evicted);
        assert!(!is_granted(&server.acquire("lc1:a:2", "60000", "3")));
        let _released = server.release("lc1:a:1", "60000", "3");
        let enters = is_granted(&server.acquire("lc1:a:2", "60000", "3"));
        // Without the set of holders, the server does not know the first holder, so its release frees no permit.
        assert_eq!(enters, evicted == PERMITS, "{evicted}");
        server.1 += 61_000_000;
        assert!(
            is_granted(&server.acquire("lc1:a:3", "60000", "3")),
            "{evicted}"
        );
    }
}

/// Without the marker, which may also be deleted by hand, the lock is free.
#[test]
fn holders_whose_marker_is_gone_do_not_hold_in_a_later_phase() {
    for kind in ["s", "1"] {
        let mut server = Evicting::new();
        assert!(is_granted(&server.acquire("lc1:a:1", "60000", kind)));
        server.evict(LOCK);
        assert!(
            is_granted(&server.acquire("lc1:a:2", "5000", kind)),
            "{kind}"
        );
        let entry = format!("c 1 60000 {kind}");
        let renewed = server.run(RENEW, &["lc1:a:1", "60000", "0", "0", &entry]);
        assert_eq!(renewed, Reply::Int(0), "{kind}");
        assert!(server.remaining() <= 5000, "{kind}");
    }
}

/// No tokens can be prefetched, but the lease must not be lost because of that.
#[test]
fn a_renewal_succeeds_even_if_the_fencing_clock_is_unusable() {
    let mut server = Evicting::new();
    assert!(is_granted(&server.acquire("lc1:a:1", "5000", "x")));
    server.0.command(&["SET", CLOCK, "7"], server.1);
    let renewed = server.run(RENEW, &["lc1:a:1", "60000", "0", "64"]);
    assert_eq!(renewed, Reply::Array(vec![Reply::Int(1), Reply::Int(0)]));
    assert!(server.remaining() > 59_000);
    server.evict(CLOCK);
    let renewed = server.run(RENEW, &["lc1:a:1", "60000", "0", "64"]);
    assert!(matches!(renewed, Reply::Array(words) if words.len() == 4));
}

/// Another reader in the queue gets no grant, since the clock makes no stamp.
#[test]
fn a_granted_reader_is_a_holder_even_if_the_fencing_clock_is_unusable() {
    let mut server = Evicting::new();
    assert!(is_granted(&server.acquire("lc1:a:1", "60000", "s")));
    server.0.command(&["SET", CLOCK, "7"], server.1);
    for number in ["2", "3"] {
        let entry = format!("c 1 60000 s lc1:a:{number}");
        let score = format!("170000000000000{number}");
        server.0.command(&["ZADD", QUEUE, &score, &entry], server.1);
    }
    let granted = is_granted(&server.acquire("lc1:a:2", "60000", "s"));
    assert!(granted);
    let held = server.0.command(&["ZCARD", HOLDERS], server.1);
    assert_eq!(held, Reply::Int(3), "two readers, and the first member");
}

/// An entry whose kind contradicts its score could admit a writer beside readers.
#[test]
fn malformed_entries_of_the_queue_are_skipped() {
    let mut server = Evicting::new();
    server.0.listen(1, b"__lock_core__:grants:c");
    for (entry, score) in [
        ("c 1 60000 x lc1:a:1", "1700000000000000"),
        ("c 2 60000 s lc1:a:2", "6200000000000000"),
        ("c 3 60000 y lc1:a:3", "6200000000000001"),
        ("c 4 lc1:a:4", "5"),
    ] {
        server.0.command(&["ZADD", QUEUE, score, entry], server.1);
    }
    assert!(is_granted(&server.acquire("lc1:a:5", "60000", "s")));
    let left = server.0.command(&["ZCARD", QUEUE], server.1);
    assert_eq!(left, Reply::Int(0));
    let held = server.0.command(&["ZCARD", HOLDERS], server.1);
    assert_eq!(held, Reply::Int(2), "the reader, and the first member");
}
