//! The figures of the locks for Prometheus: times of waits and holds, the number of waiters now, and lost leases.
//!
//! ```text
//! cargo run -p examples --bin metrics -F metrics
//! curl http://127.0.0.1:9000/metrics
//! ```
//!
//! Ten workers want three locks, all the time. With `LOCK_URL=redis://127.0.0.1` they share the locks with every other process that
//! is started so; without it, the locks are in memory.

#![expect(clippy::print_stdout, reason = "it tells the user what to try")]

use std::{env, error::Error, time::Duration};

use axum::{Router, routing::get};
use examples::{shut_down_when_told, told_to_end};
use lock_core::{LockError, LockManager, distributed_lock};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tokio::{net::TcpListener, task::JoinSet, time::sleep};

/// The bounds of the buckets, in seconds: waits and holds take microseconds, or minutes.
const BUCKETS: [f64; 8] = [0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0];

#[distributed_lock(key = "shelf:{shelf}", ttl = "10s", wait = "500ms")]
async fn restock(shelf: usize, takes: Duration) -> Result<(), LockError> {
    sleep(takes).await;
    Ok(())
}

/// Fills one shelf after the other. If a shelf is busy for too long, the worker goes to the next one.
async fn work(number: usize) {
    let mut shelf = number;
    loop {
        shelf = (shelf + 1) % 3;
        let takes = Duration::from_millis(20 + 10 * u64::try_from(number).unwrap_or(0));
        if let Err(error) = restock(shelf, takes).await
            && !error.is_busy()
        {
            eprintln!("metrics: {error}");
            sleep(Duration::from_secs(1)).await;
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The recorder is installed before the manager is made, so that the figures come with their descriptions.
    let prometheus = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("seconds".to_owned()), &BUCKETS)?
        .install_recorder()?;
    let url = env::var("LOCK_URL").unwrap_or_else(|_| "memory://".to_owned());
    let locks = LockManager::connect(&url).await?;
    lock_core::set_global(locks.clone());
    let mut workers = JoinSet::new();
    for number in 0..10 {
        workers.spawn(work(number));
    }
    let port = env::var("PORT").unwrap_or_else(|_| "9000".to_owned());
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let told = told_to_end();
    println!("curl http://{}/metrics", listener.local_addr()?);
    let app = Router::new().route("/metrics", get(async move || prometheus.render()));
    axum::serve(listener, app)
        .with_graceful_shutdown(told)
        .await?;
    // The workers are dropped in the middle of their work, and their locks are released.
    workers.shutdown().await;
    shut_down_when_told(locks).await;
    Ok(())
}
