//! The locks of this process. For each key: which task holds it, which ones wait, and what is asked of the server. For all of them:
//! the registry, and what they share.

pub(crate) mod context;
mod effects;
pub(crate) mod hold;
#[cfg(test)]
mod interleavings;
pub(crate) mod key_map;
pub(crate) mod key_state;
pub(crate) mod lease_state;
pub(crate) mod reentry;
pub(crate) mod registry;
mod requests;
pub(crate) mod waiting;
