//! The response to a client when something goes wrong. For a failed lock, the `axum` feature of lock-core makes the
//! response.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};

/// Why a request failed, for reasons other than a failed lock.
#[derive(Debug)]
pub(crate) enum ApiError {
    NoSuchOrder,
    /// The lease ended, another holder got the lock, and that holder has claimed the order.
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
                // For the operator of the shop, not for its clients.
                eprintln!("the database: {error}");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}
