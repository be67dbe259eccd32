//! The methods of tonic. A return type that names a stream is refused, but an alias may hide it.

use std::pin::Pin;

use futures_util::{Stream, StreamExt as _, poll};
use lock_core::{LockError, distributed_lock};
use tonic::{Response, Status};

use super::{App, LOG, install_log, piece, warnings};

type Rows = Pin<Box<dyn Stream<Item = Result<usize, Status>> + Send>>;

fn rows(app: &App) -> Response<Rows> {
    let rows = piece(app).map(|piece| Ok(piece?.len()));
    Response::new(Box::pin(rows))
}

#[distributed_lock(key = "tonic:one:{kind}", locks = app.locks)]
async fn one(app: &App, kind: &str) -> Result<Response<usize>, Status> {
    match kind {
        "failed" => Err(LockError::NotConfigured.into()),
        text => Ok(Response::new(text.len())),
    }
}

#[distributed_lock(key = "tonic:bounded", max_hold = "60s", locks = app.locks)]
async fn bounded(app: &App) -> Result<Response<Rows>, Status> {
    Ok(rows(app))
}

#[distributed_lock(key = "tonic:unbounded", locks = app.locks)]
async fn unbounded(app: &App) -> Result<Response<Rows>, Status> {
    Ok(rows(app))
}

#[tokio::test]
async fn a_message_is_complete_on_return() {
    install_log();
    let app = App::in_memory();
    for kind in ["whole", "failed"] {
        assert_eq!(one(&app, kind).await.is_ok(), kind == "whole");
        let key = format!("tonic:one:{kind}");
        assert!(app.try_hold(&key).await.is_some(), "{kind}");
        assert_eq!(warnings(&key), 0, "{}", LOG.text());
    }
}

#[tokio::test]
async fn a_stream_behind_an_alias_keeps_its_lock_until_it_has_ended() {
    install_log();
    let app = App::in_memory();
    let mut rows = bounded(&app).await.expect("free").into_inner();
    assert!(poll!(rows.next()).is_pending());
    assert!(app.try_hold("tonic:bounded").await.is_none());
    app.finish.notify_one();
    assert!(matches!(rows.next().await, Some(Ok(_))));
    assert!(rows.next().await.is_none());
    drop(app.hold("tonic:bounded").await);

    drop(bounded(&app).await.expect("free"));
    drop(app.hold("tonic:bounded").await);
    assert_eq!(warnings("tonic:bounded"), 0, "{}", LOG.text());
}

#[tokio::test]
async fn a_stream_without_a_bound_releases_its_lock_and_warns() {
    install_log();
    let app = App::in_memory();
    for _ in 0..2 {
        let _rows = unbounded(&app).await.expect("free");
        assert!(app.try_hold("tonic:unbounded").await.is_some());
    }
    assert_eq!(warnings("tonic:unbounded"), 1, "{}", LOG.text());
}
