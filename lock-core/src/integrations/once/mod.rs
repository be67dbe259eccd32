//! Bodies that run once, in web frameworks: the header that names a repeat, and the response that is kept for it.

#[cfg(feature = "axum")]
pub(crate) mod idempotency_key;
#[cfg(any(feature = "axum", feature = "poem"))]
mod kept_response;
