//! A function that returns nothing.

use lock_core::distributed_lock;

#[distributed_lock(key = "order:{id}", on_error = |error| eprintln!("{error}"))]
async fn silent(id: u64) {
    eprintln!("{id}");
}

#[distributed_lock(key = "order:{id}", on_error = drop)]
#[allow(clippy::unused_unit)]
async fn written(id: u64) -> () {
    if id > 1 {
        return;
    }
    eprintln!("{id}");
}

#[distributed_lock(key = "order", on_error = drop)]
async fn empty() {}
