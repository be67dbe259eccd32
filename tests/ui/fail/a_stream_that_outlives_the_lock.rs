//! Streams that would outlive the lock, by each type that the attribute recognises.
// error: the lock would be released when the function returns, before the stream is read
// at: Sse<Rows>
// error: return `guard.hold_during(stream)`
// at: Self::ListStream
// error: the lock would be released
// at: axum::body::BodyDataStream
// error: the lock would be released
// at: Stream<Item = u8>
// error: the lock would be released
// at: BoxStream<'static, u8>
// error: the lock would be released
// at: SSE

use axum::{body::Body, response::{Sse, sse::Event}};
use futures_util::{Stream, stream, stream::BoxStream};
use lock_core::{LockError, distributed_lock};
use tonic::{Response, Status};

type Rows = stream::Empty<Result<Event, LockError>>;

struct Service;

trait Lists {
    type ListStream;

    fn list(&self) -> impl Future<Output = Result<Response<Self::ListStream>, Status>>;
}

impl Lists for Service {
    type ListStream = stream::Empty<Result<u8, Status>>;

    #[distributed_lock(key = "list")]
    async fn list(&self) -> Result<Response<Self::ListStream>, Status> {
        Ok(Response::new(stream::empty()))
    }
}

#[distributed_lock(key = "events")]
async fn events() -> Result<Sse<Rows>, LockError> {
    Ok(Sse::new(stream::empty()))
}

#[distributed_lock(key = "body", on_error = |_| todo!())]
async fn body() -> axum::body::BodyDataStream {
    Body::empty().into_data_stream()
}

#[distributed_lock(key = "numbers")]
async fn numbers() -> impl Stream<Item = u8> {
    stream::empty()
}

#[distributed_lock(key = "numbers")]
async fn boxed() -> Result<BoxStream<'static, u8>, LockError> {
    Ok(Box::pin(stream::empty()))
}

/// A type named as in poem.
pub struct SSE;

#[distributed_lock(key = "rows")]
async fn rows() -> Result<SSE, LockError> {
    Ok(SSE)
}
