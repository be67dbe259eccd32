//! The bytes to one server and back: the stream, TLS, and the protocol in them.

pub(crate) mod redirect;
pub(crate) mod resp;
pub(crate) mod round_trip;
pub(crate) mod socket;
#[cfg(feature = "tls")]
mod tls;
