//! The page, and the routes that it uses.

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
    routing::{get, post},
};
use examples::shutdown_signal;
use futures_util::{Stream, StreamExt, stream};

use crate::{
    board::Board,
    sale::{NotStarted, Sale},
};

pub(crate) fn router(sale: Sale) -> Router {
    let file = |kind: &'static str, text: &'static str| {
        // The page loads nothing from another host, and no script or style except these files.
        let policy = "default-src 'self'; img-src data:";
        let headers = [
            (header::CONTENT_TYPE, kind),
            (header::CONTENT_SECURITY_POLICY, policy),
        ];
        get(move || async move { (headers, text) })
    };
    let html = file("text/html; charset=utf-8", include_str!("page/index.html"));
    let css = file("text/css; charset=utf-8", include_str!("page/style.css"));
    let js = file(
        "text/javascript; charset=utf-8",
        include_str!("page/script.js"),
    );
    Router::new()
        .route("/", html)
        .route("/style.css", css)
        .route("/script.js", js)
        .route("/start", post(start))
        .route("/board", get(board))
        .route("/events", get(events))
        .with_state(sale)
}

async fn start(State(sale): State<Sale>) -> Response {
    match sale.start().await {
        Ok(()) => StatusCode::ACCEPTED.into_response(),
        Err(NotStarted::Running) => (StatusCode::CONFLICT, "a sale is running").into_response(),
        Err(NotStarted::Unavailable(why)) => (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    }
}

async fn board(State(sale): State<Sale>) -> Json<Board> {
    Json(sale.watch().borrow().clone())
}

/// The board, now and whenever it changes, until the program ends.
async fn events(State(sale): State<Sale>) -> Sse<impl Stream<Item = Result<Event, axum::Error>>> {
    let mut board = sale.watch();
    board.mark_changed();
    let changes = stream::unfold(board, async |mut board| {
        board.changed().await.ok()?;
        let event = Event::default().json_data(&*board.borrow_and_update());
        Some((event, board))
    });
    Sse::new(changes.take_until(Box::pin(shutdown_signal()))).keep_alive(KeepAlive::default())
}
