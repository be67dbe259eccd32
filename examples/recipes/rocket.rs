//! A locked handler of Rocket. A `LockError` becomes a response with its status, headers and body through the `http`
//! feature.

use std::io::Cursor;

use lock_core::{LockError, LockManager, distributed_lock};
use rocket::{
    Build, Request, Rocket, State,
    http::Status,
    post,
    response::{self, Responder, Response},
    routes,
};

struct Refused(LockError);

impl From<LockError> for Refused {
    fn from(error: LockError) -> Self {
        Self(error)
    }
}

impl<'r> Responder<'r, 'static> for Refused {
    fn respond_to(self, _: &'r Request<'_>) -> response::Result<'static> {
        // Rocket has its own types, so the parts are copied one by one.
        let (parts, body) = http::Response::<String>::from(self.0).into_parts();
        let mut response = Response::build();
        response.status(Status::new(parts.status.as_u16()));
        for (name, value) in &parts.headers {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            response.raw_header(name.to_string(), value);
        }
        response.sized_body(body.len(), Cursor::new(body)).ok()
    }
}

#[post("/orders/<id>/pay")]
#[distributed_lock(key = "order:{id}", wait = "0s", locks = locks.inner())]
async fn pay(locks: &State<LockManager>, id: u64) -> Result<String, Refused> {
    Ok(format!("order {id}: paid"))
}

fn service(locks: LockManager) -> Rocket<Build> {
    rocket::build().manage(locks).mount("/", routes![pay])
}

#[rocket::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = LockManager::connect("redis://127.0.0.1").await?;
    service(locks).launch().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use lock_core::LockOptions;
    use rocket::local::asynchronous::Client;

    use super::*;

    #[tokio::test]
    async fn a_busy_lock_has_its_status_headers_and_body() {
        let locks = LockManager::in_memory();
        let client = Client::tracked(service(locks.clone())).await.unwrap();
        let _held = locks.acquire("order:42", LockOptions::default()).await;

        let busy = client.post("/orders/42/pay").dispatch().await;
        assert_eq!(busy.status(), Status::Conflict);
        assert!(busy.headers().contains("retry-after"));
        let media_type = busy.headers().get_one("content-type");
        assert_eq!(media_type, Some("application/problem+json"));
        let free = client.post("/orders/43/pay").dispatch().await;
        assert_eq!(free.status(), Status::Ok);
    }
}
