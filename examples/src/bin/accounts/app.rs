//! A small service like many others: accounts with transfers, and sessions with refresh tokens.
//!
//! Its handlers are correct as long as no two of them run at once. The second half of the file holds the same handlers under a lock.

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use lock_core::{LockError, LockManager, distributed_lock};
use serde::{Deserialize, Serialize};
use sqlx::{PgConnection, PgPool};

pub(crate) const SCHEMA: &str = "
    DROP TABLE IF EXISTS accounts, sessions;
    CREATE TABLE accounts (id BIGINT PRIMARY KEY, cents BIGINT NOT NULL);
    CREATE TABLE sessions (id BIGINT PRIMARY KEY, token TEXT NOT NULL);";

/// One instance of the service. It shares its database and its locks with the other instances, and nothing else.
#[derive(Debug, Clone)]
pub(crate) struct App {
    pub(crate) database: PgPool,
    pub(crate) locks: LockManager,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Transfer {
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) cents: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Refresh {
    pub(crate) session: i64,
    pub(crate) token: String,
}

pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route("/before/transfers", post(transfer))
        .route("/before/tokens", post(refresh))
        .route("/after/transfers", post(locked_transfer))
        .route("/after/tokens", post(locked_refresh))
        .with_state(app)
}

/// Reads both balances, and writes both in the same transaction.
async fn transfer(
    State(app): State<App>,
    Json(order): Json<Transfer>,
) -> Result<StatusCode, ApiError> {
    let mut transaction = app.database.begin().await?;
    let from = balance(&mut transaction, order.from).await?;
    let to = balance(&mut transaction, order.to).await?;
    if from < order.cents {
        return Err(ApiError::TooLittle);
    }
    set_balance(&mut transaction, order.from, from - order.cents).await?;
    set_balance(&mut transaction, order.to, to + order.cents).await?;
    transaction.commit().await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn balance(database: &mut PgConnection, account: i64) -> sqlx::Result<i64> {
    let balance = sqlx::query_scalar("SELECT cents FROM accounts WHERE id = $1");
    balance.bind(account).fetch_one(database).await
}

async fn set_balance(database: &mut PgConnection, account: i64, cents: i64) -> sqlx::Result<()> {
    let update = sqlx::query("UPDATE accounts SET cents = $2 WHERE id = $1");
    update.bind(account).bind(cents).execute(database).await?;
    Ok(())
}

/// Replaces a refresh token, which may be used once.
async fn refresh(State(app): State<App>, Json(request): Json<Refresh>) -> Result<String, ApiError> {
    let current = sqlx::query_scalar("SELECT token FROM sessions WHERE id = $1");
    let current: String = current
        .bind(request.session)
        .fetch_one(&app.database)
        .await?;
    if current != request.token {
        return Err(ApiError::UsedToken);
    }
    let next = sqlx::query_scalar(
        "UPDATE sessions SET token = gen_random_uuid()::text WHERE id = $1 RETURNING token",
    );
    Ok(next.bind(request.session).fetch_one(&app.database).await?)
}

/// Takes the locks of both accounts in one order, whatever the direction of the transfer. It borrows a connection from the pool only
/// after that, so no handler waits for a lock while it occupies a connection.
#[distributed_lock(key = ["account:{order.from}", "account:{order.to}"], wait = "1m", locks = app.locks)]
async fn locked_transfer(
    State(app): State<App>,
    Json(order): Json<Transfer>,
) -> Result<StatusCode, ApiError> {
    transfer(State(app), Json(order)).await
}

#[distributed_lock(key = "session:{request.session}", wait = "1m", locks = app.locks)]
async fn locked_refresh(
    State(app): State<App>,
    Json(request): Json<Refresh>,
) -> Result<String, ApiError> {
    refresh(State(app), Json(request)).await
}

#[derive(Debug)]
pub(crate) enum ApiError {
    TooLittle,
    UsedToken,
    Database(sqlx::Error),
    Lock(LockError),
}

impl From<sqlx::Error> for ApiError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<LockError> for ApiError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        match self {
            Self::TooLittle => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
            Self::UsedToken => StatusCode::UNAUTHORIZED.into_response(),
            Self::Database(error) => {
                (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
            }
            // 409 with `Retry-After` if the lock is busy, 503 if it was lost or no server answers.
            Self::Lock(error) => error.into_response(),
        }
    }
}
