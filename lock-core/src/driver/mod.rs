//! The locks of this process. For each key: which task holds it, which ones wait, and which requests are sent to the server. For
//! all of them: the registry, and what they share.

mod acquire_in_flight;
pub(crate) mod context;
mod effects;
pub(crate) mod hold;
#[cfg(test)]
mod interleavings;
mod key_map;
pub(crate) mod lease_state;
pub(crate) mod outage;
pub(crate) mod reentry;
pub(crate) mod registry;
mod release_in_flight;
mod releasing;
mod ticking;
mod until_certain;
pub(crate) mod waiting;
