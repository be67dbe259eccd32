//! Edition 2021: temporaries of the tail expression live longer, and a body that never returns falls back to `()`.
// edition: 2021

use lock_core::{distributed_lock, LockError};
use std::{sync::Mutex, time::Duration};

#[distributed_lock(key = "n")]
async fn tail(n: Mutex<Vec<u8>>) -> Result<usize, LockError> {
    Ok(n.lock().map_or(0, |inner| inner.len()))
}

#[distributed_lock(key = "n", on_error = |_| 0)]
async fn taken_apart((n, _): (Mutex<Vec<u8>>, u8)) -> usize {
    match n.lock().unwrap().len() {
        0 => 1,
        n => n,
    }
}

#[distributed_lock(key = "leader", on_error = |error| panic!("{error}"))]
async fn lead(pause: Duration) -> ! {
    loop {
        tokio::time::sleep(pause).await;
    }
}
