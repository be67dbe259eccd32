//! Web frameworks and streams.

/// Makes responses return types of annotated functions, by their `From<LockError>`.
#[cfg(any(feature = "http", feature = "actix"))]
macro_rules! returned {
    ($($response:ty),+) => {$(
        #[diagnostic::do_not_recommend]
        impl crate::error::FromLockError for $response {
            fn from_lock_error(error: crate::error::LockError) -> Self {
                error.into()
            }
        }
    )+};
}

#[cfg(feature = "actix")]
pub(crate) mod actix;
#[cfg(feature = "axum")]
mod axum;
#[cfg(any(feature = "axum", feature = "poem"))]
pub(crate) mod held_body;
#[cfg(feature = "http")]
mod http;
#[cfg(any(
    feature = "axum",
    feature = "actix",
    feature = "poem",
    feature = "tonic"
))]
mod kept_lock;
#[cfg(feature = "poem")]
pub(crate) mod poem;
#[cfg(any(feature = "http", feature = "actix", feature = "tonic"))]
pub(crate) mod problem;
pub(crate) mod response;
#[cfg(feature = "stream")]
pub(crate) mod stream;
#[cfg(feature = "tonic")]
mod tonic;
