//! The requests of the port: the commands by which each is carried out, and what their replies mean.

mod gathered;
mod native_release;
pub(crate) mod on_the_manager;
pub(crate) mod one_message;
pub(crate) mod redis_store;
pub(crate) mod renewals;
pub(crate) mod together;
