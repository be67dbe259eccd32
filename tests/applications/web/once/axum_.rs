//! axum.

use axum::{
    Router,
    body::Body,
    debug_handler,
    extract::{Path, State},
    response::Response,
    routing::post,
};
use lock_core::{IdempotencyKey, LockError};

use super::{super::serving, App};

once_claims!();
once_claims!(a_response_to_a_request_without_a_readable_key_says_what_to_send);

async fn start(app: App) -> String {
    let router = Router::new().route("/{kind}", post(handle)).with_state(app);
    serving::axum(router).await
}

#[debug_handler]
async fn handle(
    State(app): State<App>,
    Path(kind): Path<String>,
    IdempotencyKey(key): IdempotencyKey,
    about: String,
) -> Result<Response, LockError> {
    let body = async |_| app.response(&kind).await.map(Body::new);
    let key = format!("{kind}:{key}");
    app.locks.run_once(key, App::options(&about), body).await
}
