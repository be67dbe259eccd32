use lock_core::{LockError, run_once};

/// Called by every replica, by its own clock, with the day, such as `2026-11-25`.
#[run_once(key = "daily-report:{day}", keep = "36h", wait = "1h")]
async fn daily_report(day: String) -> Result<(), LockError> {
    send_report(&day).await
}
