//! `lockctl watch` at a terminal, which the program `script` provides.

use lock_core::LockManager;
use lock_tests::{AcquireFree as _, Process, RedisServer, ReleaseHeld as _, connect, options};

use super::{LOCKCTL, until_awaited_by};

/// Moves the cursor to the upper left, and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(crate) fn at_terminal(server: &RedisServer, size: &str, arguments: &str) -> Process {
    let shell = format!("stty {size}; exec \"$LOCKCTL\" {arguments}");
    let url = server.url();
    let variables = [("LOCKCTL", LOCKCTL), ("LOCK_URL", &url), ("NO_COLOR", "1")];
    Process::spawn(
        "script",
        &["-q", "-e", "-c", &shell, "/dev/null"],
        &variables,
    )
}

/// Returns the lines of the second screen, which is complete when the third one begins.
pub(crate) fn screen(process: &mut Process) -> Vec<String> {
    const MOST_LINES: usize = 1_000;
    let mut seen = String::new();
    for _ in 0..MOST_LINES {
        if seen.matches(CLEAR).count() == 3 {
            break;
        }
        seen += &process.line();
        seen.push('\n');
    }
    assert_eq!(seen.matches(CLEAR).count(), 3, "{seen}");
    let second = seen.split(CLEAR).nth(2).expect("two screens");
    // Only the commands for the cursor contain escapes.
    second
        .replace("\x1b[?7l", "")
        .replace("\x1b[?7h", "")
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Makes this many managers, which stand for processes, wait for a key.
async fn start_waiters(server: &RedisServer, key: &'static str, count: usize) -> Vec<LockManager> {
    let mut waiting = Vec::new();
    for _ in 0..count {
        let other = connect(&server.url()).await;
        let task = other.clone();
        tokio::spawn(async move { task.acquire(key, options().wait_forever()).await });
        waiting.push(other);
    }
    until_awaited_by(count, &connect(&server.url()).await, key).await;
    waiting
}

#[tokio::test]
async fn three_hundred_locks_fit_a_terminal_and_the_key_with_most_waiters_is_first() {
    const KEYS: usize = 300;
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    server.set_all((0..KEYS - 2).map(|key| format!("lock:k{key:05}")));
    let one = locks.acquire_free("one-waits", options()).await;
    let two = locks.acquire_free("two-wait", options()).await;
    let _waiting = [
        start_waiters(&server, "one-waits", 1).await,
        start_waiters(&server, "two-wait", 2).await,
    ];
    for (rows, columns) in [(24, 80), (10, 70)] {
        let size = format!("rows {rows} cols {columns}");
        let mut process = at_terminal(&server, &size, "watch --interval 100ms");
        let lines = screen(&mut process);
        assert_eq!(lines.len(), rows, "{lines:#?}");
        let longest = lines.iter().map(|line| line.chars().count()).max();
        assert!(
            longest.is_some_and(|longest| longest <= columns),
            "{lines:#?}"
        );
        let heading = lines.iter().position(|line| line.starts_with("KEY"));
        let heading = heading.expect("a heading");
        assert!(lines[heading].ends_with("WAITING PROCESSES"), "{lines:#?}");
        let keys: Vec<_> = lines[heading + 1..rows - 1]
            .iter()
            .map(|line| line.split(' ').next())
            .collect();
        assert_eq!(
            keys[..3],
            [Some("two-wait"), Some("one-waits"), Some("k00000")]
        );
        let left = KEYS - keys.len();
        assert_eq!(lines[rows - 1], format!("… {left} more"));
        assert!(
            lines[heading + 1].ends_with(" 2") && lines[heading + 2].ends_with(" 1"),
            "{lines:#?}"
        );
    }
    one.release_held().await;
    two.release_held().await;
}
