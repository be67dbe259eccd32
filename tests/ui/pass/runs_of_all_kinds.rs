//! Bodies that run once, and the results that are stored for later callers.
use std::{rc::Rc, sync::Arc, time::Duration};

use axum::response::IntoResponse;
use lock_core::{LockError, LockManager, distributed_lock, run_once};

/// The time for which results are kept.
const KEEP: Duration = Duration::from_secs(3_600);

/// A service.
#[derive(Clone, Debug)]
pub struct Service {
    locks: LockManager,
    name: String,
}

impl Service {
    /// Has all options.
    ///
    /// # Errors
    ///
    /// If the lock fails.
    #[run_once(
        key = "all:{self.name}:{id}",
        keep = "8760h",
        fingerprint = (&text, id),
        ttl = "1s",
        wait = "forever",
        max_hold = "1m",
        on_drop = finish,
        on_error = |error| Err(error.to_string()),
        lease = lease,
        locks = self.locks,
        crate = lock_core,
    )]
    pub async fn all(self: Arc<Self>, id: u64, text: String) -> Result<(String, u64), String> {
        Ok((text, lease.fencing_token().into()))
    }

    /// Has borrowed arguments, and a body that is not `Send`.
    ///
    /// # Errors
    ///
    /// If the lock fails.
    #[run_once(key = self.name.as_str(), keep = KEEP, on_drop = cancel, locks = self.locks)]
    pub async fn cancels(&mut self, text: &str) -> Result<String, LockError> {
        let local = Rc::new(text.to_owned());
        tokio::task::yield_now().await;
        self.name.push_str(&local);
        Ok(self.name.clone())
    }
}

/// Is generic, with a pattern, and below another lock.
///
/// # Errors
///
/// If the lock fails.
#[distributed_lock(key = "plain", on_drop = finish)]
#[run_once(key = "generic:{id}", keep = KEEP, fingerprint = id)]
pub async fn generic<T>((id, value): (u64, T)) -> Result<Option<u64>, LockError>
where
    T: ToString + Send + 'static,
{
    Ok(value.to_string().parse().ok().or(Some(id)))
}

/// Returns a boxed future.
#[must_use]
#[run_once(key = "boxed", keep = KEEP)]
pub fn boxed(id: u64) -> futures_util::future::BoxFuture<'static, Result<u64, LockError>> {
    Box::pin(async move { Ok(id) })
}

/// Returns a response of any type.
#[run_once(key = "any:{id}", keep = KEEP, fingerprint = body)]
pub async fn any(id: u64, body: String) -> impl IntoResponse {
    if id == 0 {
        return (axum::http::StatusCode::NOT_FOUND, body);
    }
    tokio::task::yield_now().await;
    (axum::http::StatusCode::OK, body)
}

/// Returns a response of any type, or an error.
///
/// # Errors
///
/// If the lock fails.
#[run_once(key = "any:{id}", keep = KEEP, on_drop = cancel)]
pub async fn any_in_result(id: &u64) -> Result<impl IntoResponse, LockError> {
    Ok(id.to_string())
}

/// Returns a response of poem, or an error.
///
/// # Errors
///
/// If the lock fails.
#[run_once(key = "poem", keep = KEEP)]
pub async fn poem() -> Result<poem::Response, poem::Error> {
    Ok(poem::IntoResponse::into_response("text"))
}

fn assert_send<T: Send>(_: T) {}

/// All futures but that of `cancels` can be spawned.
pub fn spawned(service: Service, id: &u64) {
    assert_send(Arc::new(service).all(1, String::new()));
    assert_send(generic((1, "2")));
    assert_send(boxed(1));
    assert_send(any(1, String::new()));
    assert_send(any_in_result(id));
    assert_send(poem());
}
