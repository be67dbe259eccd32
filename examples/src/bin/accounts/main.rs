//! Two instances of a service on one PostgreSQL database, before and after its handlers take locks.
//!
//! The program sends both instances the requests of a busy day, and counts the failures:
//!
//!     docker run -d -p 5432:5432 -e POSTGRES_HOST_AUTH_METHOD=trust postgres
//!     docker run -d -p 6379:6379 redis
//!     cargo run -p examples --bin accounts -F accounts
//!
//! Set `DATABASE_URL` and `LOCK_URL` to use other servers. The tables `accounts` and `sessions` of that database are replaced.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod app;

use std::{env, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use axum::{
    Router,
    body::{self, Body},
    http::{Request, StatusCode, header::CONTENT_TYPE},
};
use lock_core::LockManager;
use serde::Serialize;
use sqlx::{PgPool, postgres::PgPoolOptions};
use tokio::task::JoinSet;
use tower::ServiceExt;

use app::{App, Refresh, Transfer};

const TRANSFERS: i64 = 20;
const OPPOSITE: i64 = 40;
const USES_OF_A_TOKEN: usize = 16;
const ROUNDS_OF_TOKENS: usize = 23;

#[tokio::main]
async fn main() -> Result<()> {
    let database_url = setting("DATABASE_URL", "postgres://postgres@127.0.0.1/postgres");
    let lock_url = setting("LOCK_URL", "redis://127.0.0.1");

    // Each instance has its own pool and manager, like a separate process.
    let apps = [
        instance(&database_url, &lock_url).await?,
        instance(&database_url, &lock_url).await?,
    ];
    let service = Service {
        database: apps[0].database.clone(),
        instances: apps.clone().map(app::router),
    };
    sqlx::raw_sql(app::SCHEMA)
        .execute(&service.database)
        .await?;

    let (before, after) = ("/before", "/after");
    println!("| | before | with locks |");
    println!("| --- | --- | --- |");
    println!(
        "| {TRANSFERS} transfers of 1 cent at once: cents moved, in each of three rounds | {} | {} |",
        service.rounds_of_transfers(before).await?,
        service.rounds_of_transfers(after).await?,
    );
    println!(
        "| {OPPOSITE} transfers in opposite directions at once: failures with a deadlock | {} | {} |",
        service.deadlocks(before).await?,
        service.deadlocks(after).await?,
    );
    println!(
        "| one refresh token used {USES_OF_A_TOKEN} times at once: rounds with more than one success, of {ROUNDS_OF_TOKENS} | {} | {} |",
        service.rounds_with_a_token_used_twice(before).await?,
        service.rounds_with_a_token_used_twice(after).await?,
    );
    println!("\n{}", service.machine().await?);

    for app in apps {
        app.locks.shutdown(Duration::from_secs(5)).await;
    }
    Ok(())
}

fn setting(variable: &str, default: &str) -> String {
    env::var(variable).unwrap_or_else(|_| default.to_owned())
}

async fn instance(database_url: &str, lock_url: &str) -> Result<App> {
    let database = PgPoolOptions::new().max_connections(20);
    let database = database.connect(database_url);
    let locks = LockManager::connect(lock_url);
    Ok(App {
        database: database.await.context("no PostgreSQL at DATABASE_URL")?,
        locks: locks.await.context("no Redis at LOCK_URL")?,
    })
}

/// The service as its clients see it. Requests go to its instances in turn.
struct Service {
    database: PgPool,
    instances: [Router; 2],
}

impl Service {
    async fn rounds_of_transfers(&self, stage: &str) -> Result<String> {
        let mut moved = Vec::new();
        for _ in 0..3 {
            self.open_accounts().await?;
            let transfers = (0..TRANSFERS).map(|_| Transfer {
                from: 1,
                to: 2,
                cents: 1,
            });
            for (status, body) in self.send_all(stage, "transfers", transfers).await? {
                ensure!(status.is_success(), "{status}: {body}");
            }
            let cents = sqlx::query_scalar("SELECT cents - 1000 FROM accounts WHERE id = 2");
            let cents: i64 = cents.fetch_one(&self.database).await?;
            moved.push(cents.to_string());
        }
        Ok(moved.join(", "))
    }

    async fn deadlocks(&self, stage: &str) -> Result<usize> {
        self.open_accounts().await?;
        let transfers = (0..OPPOSITE).map(|number| Transfer {
            from: 1 + number % 2,
            to: 2 - number % 2,
            cents: 1,
        });
        let mut deadlocks = 0;
        for (status, body) in self.send_all(stage, "transfers", transfers).await? {
            if body.contains("deadlock detected") {
                deadlocks += 1;
            } else {
                ensure!(status.is_success(), "{status}: {body}");
            }
        }
        Ok(deadlocks)
    }

    async fn rounds_with_a_token_used_twice(&self, stage: &str) -> Result<usize> {
        let mut rounds = 0;
        for _ in 0..ROUNDS_OF_TOKENS {
            let token = self.log_in().await?;
            let uses = (0..USES_OF_A_TOKEN).map(|_| Refresh {
                session: 1,
                token: token.clone(),
            });
            let mut successes = 0;
            for (status, body) in self.send_all(stage, "tokens", uses).await? {
                match status {
                    StatusCode::OK => successes += 1,
                    StatusCode::UNAUTHORIZED => {}
                    _ => anyhow::bail!("{status}: {body}"),
                }
            }
            ensure!(successes > 0, "the first use of a token is refused");
            rounds += usize::from(successes > 1);
        }
        Ok(rounds)
    }

    async fn open_accounts(&self) -> Result<()> {
        let open = "TRUNCATE accounts; INSERT INTO accounts VALUES (1, 1000), (2, 1000)";
        sqlx::raw_sql(open).execute(&self.database).await?;
        Ok(())
    }

    async fn log_in(&self) -> Result<String> {
        let session = "INSERT INTO sessions VALUES (1, gen_random_uuid()::text)
            ON CONFLICT (id) DO UPDATE SET token = EXCLUDED.token RETURNING token";
        Ok(sqlx::query_scalar(session)
            .fetch_one(&self.database)
            .await?)
    }

    /// Sends all requests at once, and returns their responses.
    async fn send_all(
        &self,
        stage: &str,
        path: &str,
        bodies: impl Iterator<Item = impl Serialize>,
    ) -> Result<Vec<(StatusCode, String)>> {
        let mut requests = JoinSet::new();
        for (body, instance) in bodies.zip(self.instances.iter().cycle()) {
            let request = Request::post(format!("{stage}/{path}"))
                .header(CONTENT_TYPE, "application/json")
                .body(Body::from(serde_json::to_string(&body)?))?;
            let response = instance.clone().oneshot(request);
            requests.spawn(async move {
                let response = response.await?;
                let status = response.status();
                let body = body::to_bytes(response.into_body(), 10_000).await?;
                anyhow::Ok((status, String::from_utf8(body.into())?))
            });
        }
        requests.join_all().await.into_iter().collect()
    }

    /// Describes where and when the figures were measured.
    async fn machine(&self) -> Result<String> {
        let versions = "SELECT current_date::text, current_setting('server_version')";
        let (date, version): (String, String) =
            sqlx::query_as(versions).fetch_one(&self.database).await?;
        let cores = thread::available_parallelism()?;
        let system = env::consts::OS;
        Ok(format!(
            "{date}, {cores} cores, {system}, PostgreSQL {version}"
        ))
    }
}
