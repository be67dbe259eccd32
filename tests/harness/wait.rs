//! Waits for conditions, so that no test has to guess how long something takes.

use std::{
    panic::Location,
    thread,
    time::{Duration, Instant},
};

/// The time after which a test gives up on a condition, longer than any stall of a busy machine.
pub const HANG: Duration = Duration::from_secs(60);

/// One second, so that `SECOND * 10` is ten seconds.
pub const SECOND: Duration = Duration::from_secs(1);

/// The pause between two checks of a condition: short compared with the whole wait, and long enough to leave a small machine to the
/// processes under test.
const PAUSE: Duration = Duration::from_millis(2);

/// Waits until `condition` holds, and panics with `what` if it does not within `within`.
///
/// The condition is checked once more after the deadline, so a test that was stalled does not fail for that reason.
/// The pauses run on tokio's clock: under a paused clock they cost no time.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
///
/// let task = tokio::spawn(async {});
/// lock_tests::eventually(Duration::from_secs(1), "the task ends", async || task.is_finished()).await;
/// # });
/// ```
#[track_caller]
pub fn eventually(
    within: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> bool,
) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move {
        let deadline = tokio::time::Instant::now() + within;
        loop {
            let is_last = tokio::time::Instant::now() >= deadline;
            if condition().await {
                return;
            }
            assert!(!is_last, "not within {within:?}: {what} ({caller})");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Like [`eventually`](fn@crate::eventually), with a condition that is one expression.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use lock_tests::{SECOND, eventually};
///
/// let task = tokio::spawn(async {});
/// eventually!(SECOND, "the task ends" => task.is_finished());
/// # });
/// ```
#[macro_export]
macro_rules! eventually {
    ($within:expr, $what:expr => $condition:expr) => {
        $crate::eventually($within, $what, async || $condition).await
    };
}

/// Like [`eventually`](fn@eventually), for tests without a runtime.
#[track_caller]
pub fn eventually_blocking(within: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    loop {
        let is_last = Instant::now() >= deadline;
        if condition() {
            return;
        }
        assert!(!is_last, "not within {within:?}: {what}");
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "not within 1s: pigs fly")]
    async fn a_condition_that_stays_false_panics_with_its_name() {
        eventually(Duration::from_secs(1), "pigs fly", async || false).await;
    }

    #[test]
    #[should_panic(expected = "not within 10ms: pigs fly")]
    fn the_blocking_wait_has_a_deadline_too() {
        eventually_blocking(Duration::from_millis(10), "pigs fly", || false);
    }
}
