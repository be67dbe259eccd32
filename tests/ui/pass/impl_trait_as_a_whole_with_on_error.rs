//! Impl trait as a whole with on error.

use lock_core::distributed_lock;

use std::fmt::Display;

#[distributed_lock(key = "of:{id}", on_error = |error| error.to_string())]
async fn f(id: u64) -> impl Display {
    if id > 2 {
        return String::new();
    }
    id.to_string()
}
