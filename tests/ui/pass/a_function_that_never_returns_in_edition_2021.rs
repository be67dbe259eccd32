//! A function that never returns in edition 2021.
// edition: 2021

use lock_core::distributed_lock;

#[distributed_lock(key = "leader", on_error = |error| panic!("{error}"))]
async fn lead(pause: std::time::Duration) -> ! {
    loop {
        tokio::time::sleep(pause).await;
    }
}
