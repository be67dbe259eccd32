//! Bodies that continue when their callers are dropped.
use std::sync::Arc;

use axum::{http::StatusCode, response::IntoResponse};
use lock_core::{LockError, LockManager, distributed_lock};

/// A service.
#[derive(Clone, Debug)]
pub struct Service {
    locks: LockManager,
    name: String,
}

impl Service {
    /// Takes `self` by value.
    ///
    /// # Errors
    ///
    /// If the lock fails.
    #[distributed_lock(key = "n:{self.name}", locks = self.locks, on_drop = finish, lease = lease)]
    pub async fn owned(self, names: Vec<String>) -> Result<usize, LockError> {
        let number = names.len();
        drop(names);
        tokio::task::yield_now().await;
        drop(lease);
        Ok(number)
    }

    /// Takes `self` in a pointer, with each other option that changes the call.
    #[distributed_lock(
        key = ["n:{self.name}", "x:{name}"],
        mode = [shared, exclusive],
        on_drop = finish,
        release = background,
        on_lost = continue,
        on_busy = skip,
        on_error = |_| (),
    )]
    pub async fn list(self: Arc<Self>, name: &'static str) {
        tokio::task::yield_now().await;
    }
}

/// Returns a response.
#[distributed_lock(key = "k", on_drop = finish)]
pub async fn handler() -> impl IntoResponse {
    if tokio::task::try_id().is_some() {
        return (StatusCode::OK, "text");
    }
    (StatusCode::NOT_FOUND, "")
}

/// Returns a response in a result.
///
/// # Errors
///
/// If the lock fails.
#[distributed_lock(key = "k", on_drop = finish, max_hold = "1m")]
pub async fn handler_in_result() -> Result<impl IntoResponse, LockError> {
    Ok("text")
}

fn assert_send<T: Send>(_: T) {}

/// All futures can be spawned.
pub fn spawned(service: Service) {
    assert_send(service.clone().owned(Vec::new()));
    assert_send(Arc::new(service).list("name"));
    assert_send(handler());
    assert_send(handler_in_result());
}
