//! Support for web frameworks and streams.

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
