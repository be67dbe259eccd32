//! Mutual exclusion between processes, shown by a counter that loses increments without it.

use lock_tests::{Process, RedisServer};

const PROCESSES: u32 = 2;
const TASKS: u32 = 4;
const INCREMENTS: u32 = 250;

/// Lets all tasks of all processes increment one counter at the same time. Returns its final value.
fn count(server: &RedisServer, mode: &str) -> u32 {
    contend(server, mode);
    value(server, "counter")
}

fn value(server: &RedisServer, counter: &str) -> u32 {
    let end = server.get(counter).expect("a process counted");
    end.parse().expect("a number")
}

fn contend(server: &RedisServer, mode: &str) {
    let (tasks, increments) = (TASKS.to_string(), INCREMENTS.to_string());
    let url = server.url();
    let arguments = [&*url, &*url, "counter", &*tasks, &*increments, mode];
    let mut contenders: Vec<Process> = (0..PROCESSES)
        .map(|_| Process::spawn(env!("CARGO_BIN_EXE_contender"), &arguments, &[]))
        .collect();
    // All are connected before the first begins, so that they really contend.
    for contender in &mut contenders {
        assert_eq!(contender.line(), "ready");
    }
    for contender in &mut contenders {
        contender.say("go");
    }
    for contender in contenders {
        contender.join();
    }
}

#[test]
fn two_processes_of_four_tasks_lose_no_increment() {
    let server = RedisServer::start();
    let expected = PROCESSES * TASKS * INCREMENTS;
    assert_eq!(count(&server, "locked"), expected);
    assert_eq!(server.get("lock:contender:counter"), None, "all released");
}

/// Of four tasks, three increment each counter, in each order and alone.
#[test]
fn two_processes_that_lock_two_keys_in_both_orders_lose_no_increment() {
    let server = RedisServer::start();
    contend(&server, "both");
    for counter in ["counter:0", "counter:1"] {
        let expected = PROCESSES * TASKS * 3 / 4 * INCREMENTS;
        assert_eq!(value(&server, counter), expected, "{counter}");
    }
    assert!(server.keys("lock:*").is_empty(), "all released");
}

/// The control: without locks the counter does lose increments, so the tests above can fail.
#[test]
fn unlocked_increments_are_lost() {
    let server = RedisServer::start();
    let expected = PROCESSES * TASKS * INCREMENTS;
    assert!(count(&server, "unlocked") < expected);
}
