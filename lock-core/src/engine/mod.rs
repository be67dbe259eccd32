//! One key inside this process, as a state machine without I/O.
//!
//! A [`KeyState`](key_state::KeyState) is everything that the process knows about a key: the wait queue, the request to the
//! server, the server leases, and their holders. Its input is an event and the time. Its output is the new state and a list
//! of [`Action`](transition::Action)s, which `driver/effects.rs` carries out after the registry's mutex is unlocked. No
//! waker, listener or destructor of the user runs here.
//!
//! There is one state for each kind of request that tasks of this process make for the key. Each state sends its own
//! requests, so the server arbitrates between these states as it does between processes. A state has at most one acquire
//! request, for its first waiter, and server leases:
//!
//! - exclusive: at most one lease, and no request at the same time. The lease is handed over from task to task.
//! - shared: each lease is a share, which any number of tasks can have. While a share is open, nothing is requested. A
//!   closed share may remain for its tasks while the next share is requested. See `sharing.rs`.
//! - permits: each task has its own lease. The request of the first waiter may be in flight at the same time.
//! - once: like exclusive, except that the lease always returns to the server, which alone knows whether there is a result.
//!   A result answers all waiters.
//!
//! ```text
//!              first waiter                 granted
//!   nothing ───────────────────▶ a request ───────────▶ a lease ──┐ passed to the next waiter
//!     ▲                            │ no waiter is left     │ ◀────┘
//!     └────────────────────────────┴──────────────────────┘ released or lost
//! ```
//!
//! The registry removes a state that has no request, no lease, no waiter, and no refusal that its task has yet to read.
//!
//! All deadlines are part of the state, which knows the earliest one. The timer queue only holds hints of a time and a key.
//! When a hint fires, the event is [`Event::Tick`](event::Event::Tick), which does only what is due, so a late, stale or
//! repeated hint does no harm.
//!
//! The types are generic, so that the explorer in `model/` can replace them. `W` is the waker, `L` is the lease as its
//! observers see it, and `O` is an owner token with its bookkeeping.

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
