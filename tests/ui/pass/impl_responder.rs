//! Impl responder, which needs the request to become a response.
#![allow(clippy::missing_errors_doc)]

use actix_web::{HttpResponse, Responder, get, http::StatusCode, web};
use lock_core::{LockError, LockManager, distributed_lock};

/// One line.
#[distributed_lock(key = "order")]
pub async fn text() -> impl Responder {
    "ok"
}

/// With returns in the middle.
#[distributed_lock(key = "order:{id}", locks = locks)]
pub async fn early(locks: web::Data<LockManager>, id: web::Path<u64>) -> impl Responder {
    if *id > 7 {
        return HttpResponse::NotFound().finish();
    }
    HttpResponse::Ok().body(id.to_string())
}

/// With a question mark.
#[distributed_lock(key = "order:{id}", lease = lease)]
pub async fn question(id: u64) -> impl actix_web::Responder + use<> {
    let parsed: u64 = id.to_string().parse()?;
    Ok::<_, Box<dyn std::error::Error>>((parsed + u64::from(lease.fencing_token())).to_string())
}

/// In a result, which needs no help.
#[distributed_lock(key = "order:{id}")]
pub async fn result(id: u64) -> actix_web::Result<impl Responder> {
    Ok(id.to_string())
}

/// In a result with the lock's own error.
#[distributed_lock(key = "order")]
pub async fn own() -> Result<impl Responder, LockError> {
    Ok("ok")
}

/// With the framework's response as the error, for a function that a handler calls.
#[distributed_lock(key = "order")]
pub async fn response_as_error() -> Result<&'static str, HttpResponse> {
    Ok("ok")
}

/// A response.
#[distributed_lock(key = "order")]
pub async fn response() -> HttpResponse {
    HttpResponse::Ok().into()
}

/// A text and a status.
#[distributed_lock(key = "order")]
pub async fn text_and_status() -> (String, StatusCode) {
    (String::new(), StatusCode::OK)
}

/// Another response for a lock that is busy, of another type than the body's.
#[distributed_lock(key = "order", on_error = |error| (error.to_string(), StatusCode::LOCKED))]
pub async fn on_error() -> impl Responder {
    web::Json(1)
}

/// Below the route.
#[get("/below")]
#[distributed_lock(key = "order")]
pub async fn below() -> impl Responder {
    "ok"
}

/// Above the route.
#[distributed_lock(key = "order:{id}")]
#[get("/above/{id}")]
pub async fn above(id: web::Path<u64>) -> impl Responder {
    id.to_string()
}

/// Checks the bounds that a server demands.
pub fn configure(config: &mut web::ServiceConfig) {
    config.route("/text", web::get().to(text));
    config.route("/early/{id}", web::get().to(early));
    config.service(below).service(above);
}
