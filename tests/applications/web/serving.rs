//! Servers of axum and poem on free ports, which end with the runtime of the test.

use poem::listener::TcpAcceptor;
use tokio::net::TcpListener;

/// Returns the url of a server of axum with these routes.
pub(super) async fn axum(routes: axum::Router) -> String {
    let (listener, url) = listen().await;
    tokio::spawn(axum::serve(listener, routes).into_future());
    url
}

/// Returns the url of a server of poem with these routes.
pub(super) async fn poem(routes: impl poem::Endpoint + 'static) -> String {
    let (listener, url) = listen().await;
    let acceptor = TcpAcceptor::from_tokio(listener).expect("a listener");
    tokio::spawn(poem::Server::new_with_acceptor(acceptor).run(routes));
    url
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    (listener, url)
}
