//! One key inside this process: which task holds it, which ones wait, and what is asked of the server.

mod actions;
mod advice;
pub(crate) mod context;
mod grant_listener;
pub(crate) mod hold;
#[cfg(test)]
mod interleavings;
mod key_map;
pub(crate) mod key_state;
mod lease_end;
pub(crate) mod lease_state;
pub(crate) mod reentry;
pub(crate) mod registry;
mod requests;
mod running_task;
mod transitions;
pub(crate) mod waiting;
