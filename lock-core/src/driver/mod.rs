//! The locks of this process. The driver runs the engine's state machine of each key, carries out its actions, and keeps
//! what all keys share: the registry, the timers, and the context.

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
