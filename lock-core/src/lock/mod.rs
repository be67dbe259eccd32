//! One key inside this process: which task holds it, which ones wait, and what is asked of the server.

pub(crate) mod acquire_in_flight;
mod actions;
pub(crate) mod context;
mod grant_listener;
pub(crate) mod hold;
pub(crate) mod key_state;
pub(crate) mod lease_state;
pub(crate) mod outage;
pub(crate) mod reentry;
pub(crate) mod registry;
pub(crate) mod release;
mod release_in_flight;
mod renewal;
pub(crate) mod waiting;
