//! What a client is told when something goes wrong.

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use lock_core::LockError;

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum ApiError {
    NoSuchOrder,
    /// The lease ended, the lock went to somebody else, and that one has claimed the order.
    Overtaken,
    Lock(LockError),
    Database(sqlx::Error),
}

/// All that an annotated handler needs to answer for a lock that it did not get.
impl From<LockError> for ApiError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
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
            Self::Lock(error) => lock_response(&error),
            Self::Database(error) => {
                // For whoever runs the shop, not for its clients.
                eprintln!("the database: {error}");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

fn lock_response(error: &LockError) -> Response {
    match error {
        LockError::Busy { retry_after, .. } => {
            // Whole seconds are all that the header knows; zero would invite a busy loop.
            let seconds = retry_after.map_or(1, |wait| wait.as_secs() + 1);
            let headers = [(header::RETRY_AFTER, seconds.to_string())];
            let text = "this order is being paid\n";
            (StatusCode::CONFLICT, headers, text).into_response()
        }
        // The shop is set up wrongly: trying again will not help.
        LockError::Invalid { .. } | LockError::NotConfigured => {
            eprintln!("the lock: {error}");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
        // Lost or unavailable: nobody knows whether the order was charged. Look, then ask again.
        _ => {
            eprintln!("the lock: {error}");
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
    }
}
