//! The requests of the port: the commands by which each is carried out, and what their replies mean.

pub(crate) mod at_location;
pub(crate) mod at_once;
mod gathered;
mod native_release;
pub(crate) mod redis_store;
pub(crate) mod renewals;
pub(crate) mod together;
