//! Runs of all kinds.
use std::{error::Error, rc::Rc, sync::Arc, time::Duration};

use lock_core::{LockError, LockManager, Remember, Remembered, distributed_lock, run_once};

/// How long results are kept.
const KEEP: Duration = Duration::from_secs(3_600);

/// As the response of a framework.
#[derive(Debug)]
pub struct Response(Vec<u8>);

impl Remember for Response {
    fn remember(self) -> (Self, Remembered) {
        let bytes = self.0.clone();
        (self, Remembered::Bytes(bytes))
    }

    fn recall(bytes: &[u8]) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(Self(bytes.to_vec()))
    }
}

/// A service.
#[derive(Clone, Debug)]
pub struct Service {
    locks: LockManager,
    name: String,
}

impl Service {
    /// With all options.
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

    /// With borrowed arguments.
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

/// A response as a whole.
#[run_once(key = "whole", keep = KEEP, on_error = |_| Response(Vec::new()))]
pub async fn whole() -> Response {
    Response(vec![1])
}

/// A response in a result.
///
/// # Errors
///
/// If the lock fails.
#[run_once(key = "result", keep = KEEP)]
pub async fn in_result(ok: bool) -> Result<Response, LockError> {
    if !ok {
        return Ok(Response(Vec::new()));
    }
    tokio::task::yield_now().await;
    Ok(Response(vec![1]))
}

/// The same, dropped with its caller.
///
/// # Errors
///
/// If the lock fails.
#[run_once(key = "result", keep = KEEP, on_drop = cancel)]
pub async fn in_result_of_a_dropped_body() -> Result<self::Response, LockError> {
    Ok(Response(vec![1]))
}

/// Generic, with a pattern, and below another lock.
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

/// A boxed future.
#[must_use]
#[run_once(key = "boxed", keep = KEEP)]
pub fn boxed(id: u64) -> futures_util::future::BoxFuture<'static, Result<u64, LockError>> {
    Box::pin(async move { Ok(id) })
}

fn assert_send<T: Send>(_: T) {}

/// The futures can be spawned.
pub fn spawned(service: Service) {
    assert_send(Arc::new(service).all(1, String::new()));
    assert_send(whole());
    assert_send(in_result(true));
    assert_send(in_result_of_a_dropped_body());
    assert_send(generic((1, "2")));
    assert_send(boxed(1));
}
