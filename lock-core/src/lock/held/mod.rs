//! What this process holds: the lease of the server, and those that observe it.

pub(crate) mod holding;
pub(crate) mod holdings;
pub(crate) mod lease_set;
pub(crate) mod lease_state;
pub(crate) mod server_lease;
