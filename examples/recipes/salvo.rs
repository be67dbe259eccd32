//! A locked handler of Salvo. A `LockError` becomes a response with its status, headers and body through the `http`
//! feature.

use lock_core::{LockError, LockManager, distributed_lock};
use salvo::{Listener, Request, Response, Router, Scribe, Server, conn::TcpListener, handler};

struct Refused(LockError);

impl From<LockError> for Refused {
    fn from(error: LockError) -> Self {
        Self(error)
    }
}

impl Scribe for Refused {
    fn render(self, response: &mut Response) {
        let (parts, body) = http::Response::<String>::from(self.0).into_parts();
        response.status_code(parts.status);
        response.headers_mut().extend(parts.headers);
        response.body(body);
    }
}

#[handler]
async fn pay(request: &mut Request) -> Result<String, Refused> {
    let id = request.param("id").unwrap_or_default();
    locked_pay(id).await
}

/// Salvo's `#[handler]` does not combine with other attributes, so the lock is on a function that the handler calls.
#[distributed_lock(key = "order:{id}", wait = "0s")]
async fn locked_pay(id: u64) -> Result<String, Refused> {
    Ok(format!("order {id}: paid"))
}

fn service() -> Router {
    Router::with_path("orders/{id}/pay").post(pay)
}

#[tokio::main]
async fn main() -> Result<(), LockError> {
    lock_core::set_global(LockManager::connect("redis://127.0.0.1").await?);
    let listener = TcpListener::new("127.0.0.1:3000").bind().await;
    Server::new(listener).serve(service()).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use lock_core::{LockOptions, with_locks};
    use salvo::{Service, http::StatusCode, test::TestClient};

    use super::*;

    #[tokio::test]
    async fn a_busy_lock_has_its_status_headers_and_body() {
        let locks = LockManager::in_memory();
        let _held = locks.acquire("order:42", LockOptions::default()).await;
        let service = Service::new(service());
        let request = |id: u64| TestClient::post(format!("http://127.0.0.1/orders/{id}/pay"));

        let busy = with_locks(locks.clone(), request(42).send(&service)).await;
        assert_eq!(busy.status_code, Some(StatusCode::CONFLICT));
        assert!(busy.headers().contains_key("retry-after"));
        assert_eq!(busy.headers()["content-type"], "application/problem+json");
        let free = with_locks(locks.clone(), request(43).send(&service)).await;
        assert_eq!(free.status_code, Some(StatusCode::OK));
    }
}
