//! The first example, in memory and on a server.

use lock_tests::{Process, RedisServer};

fn printed(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    Process::spawn(env!("CARGO_BIN_EXE_quickstart"), arguments, variables).join()
}

fn assert_printed(printed: &str) {
    let lines: Vec<&str> = printed.lines().collect();
    let [began, ended, then_began, then_ended, rest @ ..] = &lines[..] else {
        panic!("{printed}");
    };
    // One charge after the other. Either of them may be the first.
    for (began, ended) in [(began, ended), (then_began, then_ended)] {
        let cents = began.strip_prefix("order 42: asking for ").expect(printed);
        assert_eq!(*ended, format!("order 42: {cents} charged"), "{printed}");
    }
    assert_ne!(began, then_began, "{printed}");
    let expected = [
        "order 42: held by hand, so no other call charges it",
        "order:42 is busy",
        "order 43: charged at once",
        "order 42: charged at once",
    ];
    assert_eq!(rest, expected, "{printed}");
}

#[test]
fn in_memory_it_shows_one_after_the_other_busy_and_by_hand() {
    assert_printed(&printed(&[], &[]));
}

#[test]
fn on_a_server_it_shows_the_same_and_leaves_no_lock() {
    let redis = RedisServer::start();
    assert_printed(&printed(&[&redis.url()], &[]));
    assert_printed(&printed(&[], &[("LOCK_URL", &redis.url())]));
    assert!(redis.calls("set") > 0);
    assert!(redis.keys("lock:*").is_empty());
}
