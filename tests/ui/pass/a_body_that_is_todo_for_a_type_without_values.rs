//! A body that is todo for a type without values.

use lock_core::distributed_lock;

#[distributed_lock(key = "order:{id}", on_error = |error| panic!("{error}"))]
async fn later(id: u64) -> std::convert::Infallible {
    unimplemented!("for {id}")
}
