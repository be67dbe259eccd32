//! An impl responder of another type.

use actix_web::Responder;
#[cfg(not(plain))]
use lock_core::distributed_lock;

struct Mine;

#[cfg_attr(not(plain), distributed_lock(key = "order"))]
async fn tail() -> impl Responder {
    Mine
}
