//! The example of a job that one of three replicas runs.

use lock_tests::{Process, RedisServer};

const PROGRAM: &str = env!("CARGO_BIN_EXE_scheduled_job");

fn sent(printed: &str) -> usize {
    printed.matches(" sends weekly-newsletter").count()
}

fn replica(redis: &RedisServer, arguments: &[&str]) -> Process {
    Process::spawn(PROGRAM, arguments, &[("LOCK_URL", &redis.url())])
}

#[test]
fn three_replicas_of_one_process_send_once() {
    let printed = Process::spawn(PROGRAM, &[], &[("LOCK_URL", "memory://")]).join();
    assert_eq!(sent(&printed), 1, "{printed}");
    assert_eq!(
        printed.matches(" skips it: another one ").count(),
        2,
        "{printed}"
    );
}

#[test]
fn three_processes_send_once() {
    let redis = RedisServer::start();
    let replicas = ["1", "2", "3"].map(|number| replica(&redis, &[number]));
    let printed: String = replicas.map(Process::join).concat();
    assert_eq!(sent(&printed), 1, "{printed}");
}

/// Each process ends before the next one begins, as if the clock of the next one were late.
#[test]
fn a_late_process_sends_again_only_without_min_hold() {
    for (option, expected) in [(None, 1), (Some("--without-min-hold"), 3)] {
        let redis = RedisServer::start();
        let printed = ["1", "2", "3"].map(|number| {
            let arguments: Vec<&str> = option.into_iter().chain([number]).collect();
            replica(&redis, &arguments).join()
        });
        assert_eq!(sent(&printed.concat()), expected, "{printed:?}");
    }
}
