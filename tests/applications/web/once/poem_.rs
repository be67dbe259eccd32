//! poem.

use http_body_util::combinators::BoxBody;
use lock_core::LockError;
use poem::{
    Body, EndpointExt as _, Response, Route, Server, handler,
    http::HeaderMap,
    listener::{Acceptor as _, TcpAcceptor},
    post,
    web::{Data, Path},
};

use super::App;

once_claims!();

#[expect(clippy::unused_async, reason = "so that all sites start alike")]
async fn start(app: App) -> String {
    let routes = Route::new().at("/:kind", post(handle)).data(app);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a listener");
    let acceptor = TcpAcceptor::from_std(listener).expect("a listener");
    let address = acceptor.local_addr().remove(0);
    let url = format!("http://{}", address.as_socket_addr().expect("tcp"));
    tokio::spawn(Server::new_with_acceptor(acceptor).run(routes));
    url
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
