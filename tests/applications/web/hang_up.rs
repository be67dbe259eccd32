//! Handlers that are dropped because a client hung up, and bodies that continue.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use lock_core::{distributed_lock, run_once};
use tokio::sync::Notify;
use tonic::Status;

use super::{App, pieces, tonic_};

/// The state of the handlers, as far as the test observes it.
#[derive(Clone, Debug)]
pub(super) struct Payments {
    app: App,
    bodies: Arc<AtomicUsize>,
    begun: Arc<Notify>,
    /// Notified when a handler is dropped.
    dropped: Arc<Notify>,
}

/// Notifies the test when its handler is dropped.
struct Handler(Arc<Notify>);

impl Drop for Handler {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Payments {
    pub(super) fn new(app: App) -> Self {
        let (bodies, begun, dropped) = Default::default();
        Self {
            app,
            bodies,
            begun,
            dropped,
        }
    }

    /// Runs a body that ends when the test says so.
    async fn work(&self) -> usize {
        let number = self.bodies.fetch_add(1, SeqCst) + 1;
        self.begun.notify_one();
        self.app.finish.notified().await;
        number
    }

    /// Waits until a body has begun, hangs up, waits until its handler is dropped, and lets the body end.
    async fn hang_up(&self, hang_up: impl FnOnce()) {
        self.begun.notified().await;
        hang_up();
        self.dropped.notified().await;
        assert!(self.app.is_held("charge:7").await, "the body runs");
        self.app.finish.notify_one();
    }

    pub(super) async fn pay(&self, id: u64) -> Result<String, Status> {
        let _handler = Handler(self.dropped.clone());
        charge(self.clone(), id).await
    }
}

#[run_once(key = "charge:{id}", keep = "1h", locks = payments.app.locks)]
async fn charge(payments: Payments, id: u64) -> Result<String, Status> {
    Ok(format!("receipt {}", payments.work().await))
}

#[distributed_lock(
    key = "charge:{id}",
    max_hold = "60s",
    locks = payments.app.locks,
    on_drop = finish,
)]
async fn stream(payments: Payments, id: u64) -> Response {
    payments.work().await;
    Body::from_stream(pieces(payments.app)).into_response()
}

#[tokio::test]
async fn a_stream_keeps_the_lock_of_a_body_that_ran_as_a_task() {
    let payments = Payments::new(App::in_memory());
    let app = payments.app.clone();
    app.finish.notify_one();
    let response = stream(payments, 7).await;
    assert!(app.is_held("charge:7").await, "it has not been read yet");
    app.finish.notify_one();
    let read = axum::body::to_bytes(response.into_body(), 64).await;
    assert_eq!(read.expect("a body"), "firstlast");
    drop(app.hold("charge:7").await);
}

#[tokio::test]
async fn a_stream_without_a_caller_is_dropped_and_its_lock_released() {
    let payments = Payments::new(App::in_memory());
    let app = payments.app.clone();
    tokio::select! {
        _ = stream(payments.clone(), 7) => panic!("it waits for the test"),
        () = payments.begun.notified() => {}
    }
    assert!(app.is_held("charge:7").await, "the body runs");
    app.finish.notify_one();
    drop(app.hold("charge:7").await);
}

#[tokio::test]
async fn a_client_that_retries_gets_the_result_of_the_first_body() {
    let app = App::in_memory();
    let payments = Payments::new(app.clone());
    let site = tonic_::start_with(app, payments.clone()).await;
    let call = site.spawn_call("/shop.Orders/once");
    payments.hang_up(|| call.abort()).await;
    let again = site.call("/shop.Orders/once").await;
    assert_eq!(again.expect("a receipt").text, "receipt 1");
    assert_eq!(payments.bodies.load(SeqCst), 1);
}
