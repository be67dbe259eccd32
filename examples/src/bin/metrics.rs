//! Metrics of the locks for Prometheus: how long tasks wait for locks and hold them, how many wait now, and lost leases.
//!
//! ```text
//! cargo run -p examples --bin metrics -F metrics
//! curl http://127.0.0.1:9000/metrics
//! ```
//!
//! Ten workers constantly compete for three shelves. They book deliveries, each of which is booked once, and one job counts the
//! stock. Processes that are started with `LOCK_URL=redis://127.0.0.1` share their locks. Without it, the locks are in memory.
//! `PORT` defaults to 9000.
//!
//! A file `prometheus.yml` in the folder of the project makes Prometheus read the page and the alert rules:
//!
//! ```yaml
//! rule_files: [docs/dashboards/alerts.yml]
//! scrape_configs:
//!   - job_name: warehouse
//!     scrape_interval: 5s
//!     static_configs: [{targets: ["127.0.0.1:9000"]}]
//! ```
//!
//! Start `prometheus` in that folder, and add it to Grafana as a data source. There choose *Dashboards*, *New*, *Import*, upload
//! `docs/dashboards/lock-core.json`, and select the data source at the top of the dashboard.
//!
//! To see alerts fire, take a lock away by `redis-cli del lock:stocktaking`, or stop the server.

#![expect(clippy::print_stdout, reason = "it tells the user what to try")]

use std::{env, error::Error, time::Duration};

use axum::{Router, routing::get};
use examples::{shut_down_on_signal, shutdown_signal};
use lock_core::{LockError, LockManager, distributed_lock, run_once};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{sleep, timeout},
};

/// The upper bounds of the buckets for waits, in seconds, as recommended in `docs/operations.md`.
const WAITS: [f64; 16] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0,
];

/// The upper bounds of the buckets for holds, in seconds.
const HOLDS: [f64; 14] = [
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
];

#[distributed_lock(key = "shelf:{shelf}", ttl = "10s", wait = "150ms")]
async fn restock(shelf: usize, takes: Duration) -> Result<(), LockError> {
    sleep(takes).await;
    Ok(())
}

/// Each worker asks for each delivery. One of them books it, and the others get its receipt.
#[run_once(key = "delivery:{number}", keep = "10s")]
async fn book(number: u64) -> Result<u64, LockError> {
    Ok(number)
}

/// Holds its lock for several seconds, so that there is time to take it away.
#[distributed_lock(key = "stocktaking", ttl = "1s")]
async fn count_the_stock() -> Result<(), LockError> {
    sleep(Duration::from_secs(3)).await;
    Ok(())
}

/// Prints an error and pauses, because every call fails while the server is away. A busy lock is not an error here.
async fn report<T>(result: Result<T, LockError>) {
    if let Err(error) = result
        && !error.is_busy()
    {
        eprintln!("metrics: {error}");
        sleep(Duration::from_secs(1)).await;
    }
}

/// Fills one shelf after the other. If a shelf is busy for too long, the worker moves to the next one.
async fn work(number: usize) {
    let takes = Duration::from_millis(20 + 10 * u64::try_from(number).unwrap_or(0));
    let mut shelf = number;
    for delivery in 0.. {
        shelf = (shelf + 1) % 3;
        report(restock(shelf, takes).await).await;
        report(book(delivery).await).await;
    }
}

async fn take_stock() {
    loop {
        report(count_the_stock().await).await;
    }
}

/// Simulates clients that hang up: each call is dropped after 30 ms.
async fn hurry() {
    loop {
        let takes = Duration::from_millis(1);
        if let Ok(result) = timeout(Duration::from_millis(30), restock(0, takes)).await {
            report(result).await;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The recorder is installed before the manager is made, so that the figures come with their descriptions.
    let prometheus = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full("lock_wait_seconds".to_owned()), &WAITS)?
        .set_buckets_for_metric(Matcher::Full("lock_hold_seconds".to_owned()), &HOLDS)?
        .install_recorder()?;
    let url = env::var("LOCK_URL").unwrap_or_else(|_| "memory://".to_owned());
    let locks = LockManager::connect(&url).await?;
    lock_core::set_global(locks.clone());
    let mut workers = JoinSet::new();
    for number in 0..10 {
        workers.spawn(work(number));
    }
    workers.spawn(take_stock());
    workers.spawn(hurry());
    let port = env::var("PORT").unwrap_or_else(|_| "9000".to_owned());
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let signal = shutdown_signal();
    println!("curl http://{}/metrics", listener.local_addr()?);
    let app = Router::new().route("/metrics", get(async move || prometheus.render()));
    axum::serve(listener, app)
        .with_graceful_shutdown(signal)
        .await?;
    // The workers are dropped in the middle of their work, and their locks are released.
    workers.shutdown().await;
    shut_down_on_signal(locks).await;
    Ok(())
}
