//! A shop on actix that handles one request at a time for each order, across all its processes.
//!
//!     cargo run -p examples --bin actix -F actix
//!
//! Then pay an order twice at the same time, and close a connection in the middle. Set `LOCK_URL=redis://127.0.0.1` to run more
//! than one process; without it, locks are in memory. `PORT` and `PAYMENT_MS` default to 3000.
#![expect(clippy::print_stdout, reason = "an example shows what to try")]

use std::{env, time::Duration};

use actix_web::{App, HttpResponse, HttpServer, Responder, post, web};
use examples::{shut_down_on_signal, shutdown_signal};
use lock_core::{LockManager, distributed_lock};

struct Shop {
    locks: LockManager,
    payment_takes: Duration,
}

/// Pays an order. A second payment gets 409 and `Retry-After`, without any code for it here.
#[post("/orders/{id}/pay")]
#[distributed_lock(key = "order:{id}", ttl = "10s", wait = "0s", locks = shop.locks)]
async fn pay(shop: web::Data<Shop>, id: web::Path<u64>) -> impl Responder {
    if *id == 0 {
        return HttpResponse::NotFound().finish();
    }
    tokio::time::sleep(shop.payment_takes).await;
    HttpResponse::Ok().body(format!("order {id}: paid\n"))
}

#[actix_web::main]
async fn main() -> anyhow::Result<()> {
    let number = |name, unset| env::var(name).map_or(Ok(unset), |text| text.parse());
    let lock_url = env::var("LOCK_URL").unwrap_or_else(|_| "memory://".to_owned());
    // A response does not wait for the reply to the release of its lock; the shutdown at the end does.
    let locks = LockManager::builder().release_in_background();
    let locks = locks.connect(&lock_url).await?;
    let shop = web::Data::new(Shop {
        locks: locks.clone(),
        payment_takes: Duration::from_millis(number("PAYMENT_MS", 3000)?),
    });
    let server = HttpServer::new(move || App::new().app_data(shop.clone()).service(pay))
        // By default, actix continues a request after its client has disconnected, and so keeps the lock.
        .h1_allow_half_closed(false)
        .shutdown_signal(shutdown_signal())
        .bind(format!("127.0.0.1:{}", number("PORT", 3000)?))?;

    let url = format!("http://{}", server.addrs()[0]);
    println!("actix on {url}");
    println!("  curl -i -X POST {url}/orders/1/pay & sleep 1; curl -i -X POST {url}/orders/1/pay");
    // After the signal, no request is accepted and no lock granted. A handler that outlasts the grace period loses its lock.
    tokio::join!(server.run(), shut_down_on_signal(locks)).0?;
    Ok(())
}
