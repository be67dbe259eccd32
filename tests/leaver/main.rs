//! A process that drops a guard and returns from `main`. Its manager is never dropped.
//!
//! ```text
//! leaver <lock url> <key> main|task|blocked-task
//! ```
//!
//! The guard is dropped by `main` itself, by a task that `main` awaits, or by a task that then blocks its worker while `main` returns.

use std::{env, error::Error, sync::OnceLock, thread, time::Duration};

use lock_core::{LockManager, LockOptions};
use tokio::sync::oneshot;

/// Longer than the process lives.
const TTL: Duration = Duration::from_secs(60);

static LOCKS: OnceLock<LockManager> = OnceLock::new();

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [url, key, place] = arguments.as_slice() else {
        return Err("leaver <lock url> <key> main|task|blocked-task".into());
    };
    let locks = LockManager::connect(url).await?;
    let locks = LOCKS.get_or_init(|| locks);
    // The first acquire opens the connection of this runtime.
    locks
        .acquire("other", LockOptions::new(TTL))
        .await?
        .release()
        .await?;
    let guard = locks.acquire(key, LockOptions::new(TTL)).await?;
    let (dropped, is_dropped) = oneshot::channel::<()>();
    match place.as_str() {
        "main" => drop(guard),
        "task" => tokio::spawn(async move { drop(guard) }).await?,
        _ => {
            tokio::spawn(async move {
                drop(guard);
                drop(dropped);
                thread::sleep(Duration::from_millis(20));
            });
            drop(is_dropped.await);
        }
    }
    Ok(())
}
