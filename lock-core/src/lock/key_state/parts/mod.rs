//! What the full state of a key consists of.

pub(crate) mod batch;
pub(crate) mod few;
pub(crate) mod local_holders;
pub(crate) mod request;
pub(crate) mod server_lease;
pub(crate) mod share;
pub(crate) mod wait_queue;
