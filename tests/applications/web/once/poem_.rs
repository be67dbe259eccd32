//! poem.

use http_body_util::combinators::BoxBody;
use lock_core::LockError;
use poem::{
    Body, EndpointExt as _, Response, Route, handler,
    http::HeaderMap,
    post,
    web::{Data, Path},
};

use super::{super::serving, App};

once_claims!();

async fn start(app: App) -> String {
    let routes = Route::new().at("/:kind", post(handle)).data(app);
    serving::poem(routes).await
}

#[handler]
async fn handle(
    Data(app): Data<&App>,
    Path(kind): Path<String>,
    headers: &HeaderMap,
    about: String,
) -> poem::Result<Response> {
    let key = headers["idempotency-key"].to_str().expect("visible");
    let body = async |_| {
        let (parts, body) = app.response(&kind).await.into_parts();
        let body = Body::from(BoxBody::new(body));
        let mut response = Response::from((parts.status, body));
        *response.headers_mut() = parts.headers;
        response
    };
    let key = format!("{kind}:{key}");
    let response = app.locks.run_once(key, App::options(&about), body).await;
    response.map_err(LockError::into)
}
