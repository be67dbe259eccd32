//! `impl Responder` of actix, which becomes a response only with the request.
#![allow(clippy::missing_errors_doc)]

use actix_web::{HttpResponse, Responder, get, http::StatusCode, web};
use lock_core::{LockError, LockManager, distributed_lock};

/// Returns early and at the end.
#[distributed_lock(key = "order:{id}", locks = locks)]
pub async fn early(locks: web::Data<LockManager>, id: web::Path<u64>) -> impl Responder {
    if *id > 7 {
        return HttpResponse::NotFound().finish();
    }
    HttpResponse::Ok().body(id.to_string())
}

/// Uses `?`.
#[distributed_lock(key = "order:{id}", lease = lease)]
pub async fn question(id: u64) -> impl actix_web::Responder + use<> {
    let parsed: u64 = id.to_string().parse()?;
    Ok::<_, Box<dyn std::error::Error>>((parsed + u64::from(lease.fencing_token())).to_string())
}

/// Returns any responder in a result with the lock's own error.
#[distributed_lock(key = "order")]
pub async fn in_result() -> Result<impl Responder, LockError> {
    Ok("ok")
}

/// Answers a busy lock by a value of another type than the body's.
#[distributed_lock(key = "order", on_error = |error| (error.to_string(), StatusCode::LOCKED))]
pub async fn on_error() -> impl Responder {
    web::Json(1)
}

/// Has the attribute below the route.
#[get("/below")]
#[distributed_lock(key = "order")]
pub async fn below() -> impl Responder {
    "ok"
}

/// Has the attribute above the route.
#[distributed_lock(key = "order:{id}")]
#[get("/above/{id}")]
pub async fn above(id: web::Path<u64>) -> impl Responder {
    id.to_string()
}

/// Checks the bounds that a server demands.
pub fn configure(config: &mut web::ServiceConfig) {
    config.route("/early/{id}", web::get().to(early));
    config.service(below).service(above);
}
