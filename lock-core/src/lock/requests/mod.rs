//! Requests of this process for its keys, from their first byte to their replies.

pub(crate) mod acquire_in_flight;
pub(crate) mod release;
