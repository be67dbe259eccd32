//! One key inside this process, as a state machine without I/O.
//!
//! One [`KeyState`](key_state::KeyState) has everything that the process knows about a key: the wait queue, the request to the
//! server, the server leases, and their holders. Its input is an event and the time. Its output is the new state and a list of
//! [`Action`](transition::Action)s, which `driver/effects.rs` carries out after the registry's mutex is free. No waker,
//! listener or destructor of the user runs in here.
//!
//! There is one state for each kind of mode in which tasks of this process acquire the key. The server arbitrates between these
//! states as it does between processes: each state sends its own requests. Each has at most one acquire request, for the first
//! waiter, and server leases:
//!
//! - exclusive: at most one lease, and no request at the same time. The lease is passed from task to task.
//! - shared: a lease is a share, which any number of tasks have. While a share is open, nothing is requested. A closed share
//!   may remain for its tasks, while the next share is requested. See `sharing.rs`.
//! - permits: each task has a lease of its own. The request of the first waiter may be in flight at the same time.
//! - once: like exclusive, except that the lease always returns to the server, which alone knows whether there is a result. A
//!   result is for all waiters.
//!
//! ```text
//!              first waiter                 granted
//!   nothing ───────────────────▶ a request ───────────▶ a lease ──┐ passed to the next waiter
//!     ▲                            │ no waiter is left     │ ◀────┘
//!     └────────────────────────────┴──────────────────────┘ released or lost
//! ```
//!
//! The registry removes a state that has neither a request, a lease, a waiter nor a refusal that its task has not read.
//!
//! Every deadline is part of the state, which knows the earliest. The timer queue holds hints (time, key). A hint that fires is
//! the event [`Event::Tick`](event::Event::Tick), which only does what is due, so a late, stale or repeated hint does no harm.
//!
//! The explorer in `model/` replaces the generic types. `W` is the waker, `L` is the lease as its observers see it, and `O` is
//! an owner token with its bookkeeping.

mod acquiring;
mod batch;
pub(crate) mod event;
mod few;
mod granting;
mod holding;
pub(crate) mod key_state;
mod local_holders;
#[cfg(all(test, feature = "redis"))]
mod model;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod server_lease;
mod sharing;
pub(crate) mod terms;
pub(crate) mod transition;
mod wait_queue;
