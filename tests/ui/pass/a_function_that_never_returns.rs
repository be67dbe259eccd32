//! A function that never returns.

use lock_core::distributed_lock;

#[distributed_lock(key = "leader", on_error = |error| panic!("{error}"))]
async fn lead(pause: std::time::Duration) -> ! {
    loop {
        tokio::time::sleep(pause).await;
    }
}

#[distributed_lock(key = "leader", on_error = |_| std::process::exit(1))]
async fn leave(code: i32) -> ! {
    std::process::exit(code)
}
