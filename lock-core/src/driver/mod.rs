//! The locks of this process. For each key, this includes the task that holds it, the tasks that wait, and the requests that
//! are sent to the server; for all keys together, the registry and the shared context.

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
