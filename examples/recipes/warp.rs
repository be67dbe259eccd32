//! A locked handler of warp. Its error is a response of the `http` crate, which the `http` feature makes from a
//! `LockError`.

use http::Response;
use lock_core::{LockError, LockManager, distributed_lock};
use warp::{Filter, Rejection, Reply};

#[distributed_lock(key = "order:{id}", wait = "0s", locks = locks)]
async fn pay(locks: LockManager, id: u64) -> Result<String, Response<String>> {
    Ok(format!("order {id}: paid"))
}

fn service(locks: LockManager) -> impl Filter<Extract = (impl Reply,), Error = Rejection> + Clone {
    warp::path!("orders" / u64 / "pay")
        .and(warp::post())
        .then(move |id| pay(locks.clone(), id))
}

#[tokio::main]
async fn main() -> Result<(), LockError> {
    let locks = LockManager::connect("redis://127.0.0.1").await?;
    warp::serve(service(locks))
        .run(([127, 0, 0, 1], 3000))
        .await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use lock_core::LockOptions;
    use warp::test::request;

    use super::*;

    #[tokio::test]
    async fn a_busy_lock_has_its_status_headers_and_body() {
        let locks = LockManager::in_memory();
        let service = service(locks.clone());
        let _held = locks.acquire("order:42", LockOptions::default()).await;
        let pay = |id: u64| request().method("POST").path(&format!("/orders/{id}/pay"));

        let busy = pay(42).reply(&service).await;
        assert_eq!(busy.status(), StatusCode::CONFLICT);
        assert!(busy.headers().contains_key("retry-after"));
        assert_eq!(busy.headers()["content-type"], "application/problem+json");
        assert_eq!(pay(43).reply(&service).await.status(), StatusCode::OK);
    }
}
