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
    // The charges run one after the other, in either order.
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
fn all_three_ways_are_shown_in_memory() {
    assert_printed(&printed(&[], &[]));
}

#[test]
fn all_three_ways_are_shown_on_a_server_and_no_lock_is_left() {
    let redis = RedisServer::start();
    assert_printed(&printed(&[&redis.url()], &[]));
    assert_printed(&printed(&[], &[("LOCK_URL", &redis.url())]));
    assert!(redis.calls("set") > 0);
    assert!(redis.keys("lock:*").is_empty());
}
