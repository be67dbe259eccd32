//! Asking the server for a lock.

pub(crate) mod acquire_loop;
mod request;
