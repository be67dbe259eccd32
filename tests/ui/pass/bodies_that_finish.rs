//! Bodies that finish.
use std::sync::Arc;

use lock_core::{LockError, LockManager, distributed_lock};

/// A service.
#[derive(Clone, Debug)]
pub struct Service {
    locks: LockManager,
    name: String,
}

impl Service {
    /// By value.
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

    /// Behind a pointer.
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

/// Dropped with its caller.
///
/// # Errors
///
/// If the lock fails.
#[distributed_lock(key = "k:{name}", on_drop = cancel)]
pub async fn cancelled(name: &str) -> Result<usize, LockError> {
    Ok(name.len())
}

/// A handler.
#[distributed_lock(key = "k", on_drop = finish)]
pub async fn handler() -> impl axum::response::IntoResponse {
    if tokio::task::try_id().is_some() {
        return (axum::http::StatusCode::OK, "text");
    }
    (axum::http::StatusCode::NOT_FOUND, "")
}

/// A handler that can fail.
///
/// # Errors
///
/// If the lock fails.
#[distributed_lock(key = "k", on_drop = finish, max_hold = "1m")]
pub async fn handler_in_result() -> Result<impl axum::response::IntoResponse, LockError> {
    Ok("text")
}

fn assert_send<T: Send>(_: T) {}

/// The futures can be spawned.
pub fn spawned(service: Service) {
    assert_send(service.clone().owned(Vec::new()));
    assert_send(Arc::new(service).list("name"));
    assert_send(cancelled("name"));
    assert_send(handler());
    assert_send(handler_in_result());
}
