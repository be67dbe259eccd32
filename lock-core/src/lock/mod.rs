//! One key inside this process: who holds it, who waits for it, and what asks the server for it.

mod acquire;
pub(crate) mod context;
mod hand_off;
pub(crate) mod held;
pub(crate) mod key_state;
mod pending_flush;
mod prefetch;
pub(crate) mod reentry;
pub(crate) mod registry;
mod release;
mod renewal;
mod wait_queue;
pub(crate) mod waiting;
