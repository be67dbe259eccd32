//! The requests of the port: the commands by which each is carried out, what the replies mean, and what the store remembers for them.

mod gathered;
mod native_release;
pub(crate) mod on_the_manager;
pub(crate) mod one_message;
pub(crate) mod redis_store;
pub(crate) mod renewals;
pub(crate) mod together;
