//! `impl Responder` without the `actix` feature.
// features: macros
// error: this `impl Responder` cannot represent a lock failure
// at: Responder
// note: is actix's only with the `actix` feature of `lock-core`
// note: enable the `actix` feature of `lock-core`, which supports actix-web 4

use lock_core::distributed_lock;

/// The framework's trait.
pub trait Responder {}
impl Responder for i32 {}

#[distributed_lock(key = "order")]
async fn f() -> impl Responder {
    1
}

#[distributed_lock(key = "order", on_error = |_| 2)]
async fn with_on_error() -> impl Responder {
    1
}
