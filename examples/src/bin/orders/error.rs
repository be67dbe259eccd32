//! What a client is told when something goes wrong. For a lock that it did not get, the feature `axum` of lock-core answers.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};

/// Why a request failed that had its lock, or needed none.
#[derive(Debug)]
pub(crate) enum ApiError {
    NoSuchOrder,
    /// The lease ended, the lock went to somebody else, and that one has claimed the order.
    Overtaken,
    Database(sqlx::Error),
}

impl From<sqlx::Error> for ApiError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        match self {
            Self::NoSuchOrder => (StatusCode::NOT_FOUND, "no such order\n").into_response(),
            Self::Overtaken => {
                let text = "another payment of this order has taken over\n";
                (StatusCode::CONFLICT, text).into_response()
            }
            Self::Database(error) => {
                // For whoever runs the shop, not for its clients.
                eprintln!("the database: {error}");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}
