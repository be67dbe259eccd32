//! actix, configured so that a request ends when its client closes the connection.

use actix_web::{
    App as Application, HttpResponse, HttpServer, Responder, get, http::StatusCode, web,
};
use lock_core::{LockError, LockOptions, distributed_lock};

use super::{App, Site, pieces};

test_claims!();
test_claims! {
    a_client_that_hangs_up_releases_the_lock_at_once
    a_client_that_hangs_up_ends_the_stream_and_its_lock
    a_reader_can_distinguish_a_loss_from_the_end
    a_response_ends_with_the_lease_of_its_function
}

#[expect(clippy::unused_async, reason = "all sites start in the same way")]
async fn start(app: App) -> Site {
    let data = web::Data::new(app.clone());
    let server = HttpServer::new(move || {
        Application::new()
            .app_data(data.clone())
            .service((result, response, opaque, as_error, mute, locked))
            .route("/hang/{id}", web::get().to(hang))
            .route("/stream/{id}", web::get().to(stream))
            .route("/sent/{id}", web::get().to(sent))
    });
    let server = server
        .workers(1)
        .disable_signals()
        .h1_allow_half_closed(false)
        .bind("127.0.0.1:0")
        .expect("a free port");
    let url = format!("http://{}", server.addrs()[0]);
    tokio::spawn(server.run());
    Site { url, app }
}

#[get("/result/{id}")]
#[distributed_lock(key = "order:{id}", wait = "0s", locks = app.locks)]
async fn result(app: web::Data<App>, id: web::Path<u64>) -> Result<String, LockError> {
    Ok(format!("order {id}"))
}

#[distributed_lock(key = "order:{id}", wait = "0s", locks = app.locks)]
#[get("/response/{id}")]
async fn response(app: web::Data<App>, id: web::Path<u64>) -> HttpResponse {
    HttpResponse::Ok().body(format!("order {id}"))
}

#[get("/opaque/{id}")]
#[distributed_lock(key = "order:{id}", wait = "0s", locks = app.locks)]
async fn opaque(app: web::Data<App>, id: web::Path<u64>) -> impl Responder {
    if *id == 0 {
        return (String::new(), StatusCode::NOT_FOUND);
    }
    (format!("order {id}"), StatusCode::OK)
}

#[distributed_lock(key = "order:{id}", wait = "0s", locks = app.locks)]
#[get("/error/{id}")]
async fn as_error(app: web::Data<App>, id: web::Path<u64>) -> actix_web::Result<impl Responder> {
    Ok(format!("order {id}"))
}

#[distributed_lock(key = "order:{id}", wait = "0s", locks = app.locks)]
#[get("/mute/{id}")]
async fn mute(app: web::Data<App>, id: web::Path<u64>) -> (String, StatusCode) {
    (format!("order {id}"), StatusCode::OK)
}

#[get("/locked/{id}")]
#[distributed_lock(
    key = "order:{id}", wait = "0s", locks = app.locks,
    on_error = |error| (error.is_busy().to_string(), StatusCode::LOCKED),
)]
async fn locked(app: web::Data<App>, id: web::Path<u64>) -> impl Responder {
    format!("order {id}")
}

#[distributed_lock(key = "order:{id}", locks = app.locks)]
async fn hang(app: web::Data<App>, id: web::Path<u64>) -> HttpResponse {
    std::future::pending().await
}

async fn stream(app: web::Data<App>, id: web::Path<u64>) -> actix_web::Result<HttpResponse> {
    let guard = app
        .locks
        .acquire(format!("order:{id}"), LockOptions::default())
        .await?;
    let body = guard.hold_during(pieces(App::clone(&app)));
    Ok(HttpResponse::Ok().streaming(body))
}

#[distributed_lock(key = "order:{id}", max_hold = "60s", locks = app.locks)]
async fn sent(app: web::Data<App>, id: web::Path<u64>) -> impl Responder {
    HttpResponse::Ok().streaming(pieces(App::clone(&app)))
}
