//! A catalog with many concurrent readers, an import that has it to itself, and exports, of which at most three run at a time.
//!
//! ```text
//! cargo run -p examples --bin reports -F reports
//! ```
//!
//! The catalog has ten pages. A report reads them from the first to the last, and an import writes them from the last to the first.
//! A report must not see pages of two imports, so reports share a lock that an import takes exclusively. Exports use a lot of
//! memory, so their number is limited by the permits of another lock.
//!
//! To run more than one process, set `LOCK_URL=redis://127.0.0.1` and `DATABASE_URL=sqlite:catalog.db`; without them, locks are in
//! memory and the catalog is in a temporary file. `PORT` defaults to 3000. `STEP_MS` is how long a page takes, and defaults to 200.
#![expect(clippy::print_stdout, reason = "an example shows what to try")]

use std::{collections::BTreeSet, env, str::FromStr as _, time::Duration};

use axum::{
    Router,
    extract::State,
    http::StatusCode,
    response::IntoResponse,
    routing::{get, post},
};
use examples::{shut_down_on_signal, shutdown_signal};
use lock_core::{LockManager, distributed_lock};
use sqlx::{SqlitePool, sqlite::SqliteConnectOptions};
use tokio::{net::TcpListener, time::sleep};

const PAGES: i64 = 10;
const SCHEMA: &str =
    "CREATE TABLE IF NOT EXISTS page (number INTEGER PRIMARY KEY, edition INTEGER NOT NULL)";

#[derive(Clone)]
struct App {
    locks: LockManager,
    pages: SqlitePool,
    step: Duration,
}

/// Reads all pages. Any number of reports run at a time, in all processes, but none while an import runs.
#[distributed_lock(key = "catalog", mode = shared, wait = "30s", locks = app.locks)]
async fn report(State(app): State<App>) -> impl IntoResponse {
    println!("a report begins");
    let mut editions = BTreeSet::new();
    for number in 1..=PAGES {
        let sql = "SELECT edition FROM page WHERE number = $1";
        let edition = sqlx::query_scalar::<_, i64>(sql).bind(number);
        editions.extend(edition.fetch_optional(&app.pages).await.map_err(failed)?);
        sleep(app.step).await;
    }
    // The lock is not a transaction: an import that was killed, or that lost its client, leaves pages of two editions.
    let edition = editions.first().copied().unwrap_or_default();
    let is_whole = editions.len() <= 1;
    let catalog = is_whole.then(|| format!("the catalog of edition {edition}\n"));
    catalog.ok_or(StatusCode::SERVICE_UNAVAILABLE)
}

/// Writes all pages under the exclusive lock. The edition is the fencing token, so an import that was stopped for longer than its
/// lease and then continues is refused at each page that a later import has written.
#[distributed_lock(key = "catalog", wait = "30s", lease = lease, locks = app.locks)]
async fn import(State(app): State<App>) -> impl IntoResponse {
    let edition = i64::try_from(u64::from(lease.fencing_token())).map_err(failed)?;
    println!("the import of edition {edition} begins");
    for number in (1..=PAGES).rev() {
        let sql = "INSERT INTO page (number, edition) VALUES ($1, $2) \
                   ON CONFLICT (number) DO UPDATE SET edition = $2 WHERE edition <= $2";
        let write = sqlx::query(sql).bind(number).bind(edition);
        let done = write.execute(&app.pages).await.map_err(failed)?;
        if done.rows_affected() == 0 {
            return Err(StatusCode::CONFLICT);
        }
        sleep(app.step).await;
    }
    Ok(format!("imported edition {edition}\n"))
}

/// Exports the catalog. At most three exports run at once, across all processes; a fourth gets 409 after two seconds.
#[distributed_lock(key = "export", permits = 3, wait = "2s", lease = lease, locks = app.locks)]
async fn export(State(app): State<App>) -> impl IntoResponse {
    // A number from 0 to 2 that no other running export has. It could name a working folder.
    let permit = lease.permit().unwrap_or_default();
    println!("an export with permit {permit} begins");
    for _ in 1..=PAGES {
        sleep(app.step).await;
    }
    format!("exported with permit {permit}\n")
}

/// Logs the error for the operator, without showing it to clients.
fn failed(error: impl std::fmt::Display) -> StatusCode {
    eprintln!("reports: {error}");
    StatusCode::INTERNAL_SERVER_ERROR
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let number = |name, unset| env::var(name).map_or(Ok(unset), |text| text.parse());
    let lock_url = env::var("LOCK_URL").unwrap_or_else(|_| "memory://".to_owned());
    let file = tempfile::NamedTempFile::new()?;
    let temporary = format!("sqlite:{}", file.path().display());
    let database_url = env::var("DATABASE_URL").unwrap_or(temporary);
    let database = SqliteConnectOptions::from_str(&database_url)?.create_if_missing(true);
    let app = App {
        locks: LockManager::connect(&lock_url).await?,
        pages: SqlitePool::connect_with(database).await?,
        step: Duration::from_millis(number("STEP_MS", 200)?),
    };
    sqlx::raw_sql(SCHEMA).execute(&app.pages).await?;
    let locks = app.locks.clone();
    let router = Router::new()
        .route("/report", get(report))
        .route("/import", post(import))
        .route("/export", post(export))
        .with_state(app);

    let port = number("PORT", 3000)?;
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let url = format!("http://{}", listener.local_addr()?);
    let signal = shutdown_signal();
    println!("reports on {url}");
    println!("  seq 20 | xargs -P 20 -I{{}} curl -s {url}/report & curl -X POST {url}/import");
    println!("  seq 5 | xargs -P 5 -I{{}} curl -s -X POST {url}/export");

    // After the signal, no request is accepted and no lock granted. A handler that outlasts the grace period loses its lock.
    let server = axum::serve(listener, router).with_graceful_shutdown(signal);
    tokio::join!(server.into_future(), shut_down_on_signal(locks)).0?;
    Ok(())
}
