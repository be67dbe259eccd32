//! A web shop that charges each order once, however often and wherever it is paid.
//!
//! ```text
//! cargo run -p examples --bin orders -F orders
//! cargo run -p examples --bin orders -F orders -- --without-lock
//! ```
//!
//! Paying an order reads it, asks a slow payment provider for the money, and writes it back. Two
//! payments at the same time both read an open order, and both charge it, unless a lock separates
//! them: see `pay` in `handlers.rs`. With `--without-lock` you can watch both charge it.
//!
//! | variable | says | if unset |
//! | --- | --- | --- |
//! | `LOCK_URL` | where the locks are, as in `redis://127.0.0.1` | `memory://`: one process |
//! | `DATABASE_URL` | where the orders are, as in `sqlite:orders.db` | a temporary file |
//! | `PAYMENT_MS` | how long the payment provider takes; try more than the ttl | 200 |
//! | `PORT` | where to listen on 127.0.0.1 | 3000, or any free port if that is taken |

#![expect(clippy::print_stdout, reason = "it tells the user what to try")]

mod error;
mod handlers;
mod payment;
mod settings;
mod store;

use std::{error::Error, io, process::ExitCode};

use axum::{
    Router,
    routing::{get, post},
};
use examples::{shut_down_on_signal, shutdown_signal};
use lock_core::LockManager;
use tokio::net::TcpListener;

use self::{handlers::Shop, payment::PaymentProvider, settings::Settings, store::Orders};

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&*error);
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let settings = Settings::read()?;

    // Every annotated handler of the process takes its locks here. A response does not wait for the
    // reply to the release of its lock; the shutdown at the end does.
    let locks = LockManager::builder().release_in_background();
    let locks = locks.connect(&settings.lock_url).await?;
    lock_core::set_global(locks.clone());

    let database = store::open(&settings.database_url).await?;
    let shop = Shop {
        orders: Orders::new(database.clone()),
        provider: PaymentProvider::new(database, settings.payment_takes),
    };
    let listener = listen(settings.port).await?;
    let signal = shutdown_signal();
    print_what_to_try(&listener, settings.with_lock)?;

    // At SIGTERM and at ctrl-c, the server accepts no more requests, and the manager grants no more locks.
    // A payment that is still under way after five seconds loses its lock, and its handler ends with an error.
    let app = router(shop, settings.with_lock);
    let server = axum::serve(listener, app).with_graceful_shutdown(signal);
    tokio::join!(server.into_future(), shut_down_on_signal(locks)).0?;
    Ok(())
}

fn router(shop: Shop, with_lock: bool) -> Router {
    let pay = if with_lock {
        post(handlers::pay)
    } else {
        post(handlers::pay_without_lock)
    };
    Router::new()
        .route("/orders", post(handlers::create))
        .route("/orders/{order_id}", get(handlers::show))
        .route("/orders/{order_id}/pay", pay)
        .with_state(shop)
}

async fn listen(port: Option<u16>) -> io::Result<TcpListener> {
    if let Some(port) = port {
        return TcpListener::bind(("127.0.0.1", port)).await;
    }
    match TcpListener::bind("127.0.0.1:3000").await {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            TcpListener::bind("127.0.0.1:0").await
        }
        bound => bound,
    }
}

fn print_what_to_try(listener: &TcpListener, with_lock: bool) -> io::Result<()> {
    let url = format!("http://{}", listener.local_addr()?);
    println!("orders on {url}");
    if with_lock {
        println!("an order is charged once, however often it is paid:");
    } else {
        println!("WITHOUT THE LOCK: an order paid twice at the same time is charged twice:");
    }
    println!("  curl --json '{{\"cents\": 4200}}' {url}/orders");
    println!("  seq 200 | xargs -P 200 -I{{}} curl -s -X POST {url}/orders/1/pay -o /dev/null");
    println!("  curl {url}/orders/1");
    if with_lock {
        println!(
            "to see it go wrong, start it with --without-lock; for two instances, start both with"
        );
        println!("  LOCK_URL=redis://127.0.0.1 DATABASE_URL=sqlite:orders.db");
    }
    Ok(())
}

/// Prints an error together with its sources.
fn report(error: &dyn Error) {
    eprint!("orders: {error}");
    let mut source = error.source();
    while let Some(error) = source {
        eprint!(": {error}");
        source = error.source();
    }
    eprintln!();
}
