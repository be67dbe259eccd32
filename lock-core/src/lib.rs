//! Distributed locks for async Rust services, on Redis or Valkey, declared with an attribute.
//!
//! ```no_run
//! # #[cfg(all(feature = "macros", feature = "redis"))]
//! # mod example {
//! use lock_core::{LockError, LockManager, distributed_lock, set_global};
//!
//! // A handler, or a job: it runs in one place at a time for each order, in all processes together.
//! #[distributed_lock(key = "order:{order_id}", ttl = "10s", wait = "2s")]
//! async fn charge(order_id: u64) -> Result<(), LockError> {
//!     Ok(())
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), LockError> {
//!     set_global(LockManager::connect("redis://127.0.0.1:6379").await?);
//!     charge(42).await
//! }
//! # }
//! ```
//!
//! Without the attribute: [`LockManager::run`] drops its body when the lease is lost, [`LockManager::acquire`] returns a
//! [`LockGuard`].
//!
//! Guides, a page each: an [overview](guide::overview) with all options, [recipes](guide::recipes), [leader
//! election](guide::leader), and [web frameworks](guide::web). For decisions: [reliability](guide::reliability), with what is promised
//! and tested, [performance](guide::performance), [comparison](guide::comparison), [versions](guide::versions). For a service in use:
//! [operations](guide::operations), [servers and proxies](guide::servers), and [migrating](guide::migrating) from another lock.
//!
//! # Shared locks and permits
//!
//! A lock is exclusive unless options say otherwise. [`LockOptions::shared`] is for readers: any number of them hold the key at a
//! time, and none beside an exclusive holder. Readers and writers take turns. [`LockOptions::permits`] admits a limited number of
//! holders at a time: each has a lease and a number of its own, [`Lease::permit`]. In the attribute, write `mode = shared` or
//! `permits = 3`. Several independent servers have exclusive locks only, and so has a server's user that may not run scripts.
//!
//! # What happens if …
//!
//! - **… Redis dies?** Leases that are held last until their ttl, and are renewed if Redis comes back in time. If not, each lease
//!   is lost a little before it expires on the server, and its body is dropped. New acquires are tried again until their wait is
//!   over, and then return [`LockError::Unavailable`].
//! - **… a lease runs out?** The body is not polled again; the caller gets [`LockError::Lost`].
//! - **… the process forks?** A manager works only in the process that made it: make one [after the fork](LockManager#forking), in
//!   each child.
//! - **… a future is dropped?** The lock is released in the background within one round trip, also if its acquire was still in
//!   flight. If the connection is gone too, the lock ends with its ttl.
//!
//! # What a lock does not promise
//!
//! A process may be paused in the middle of a step until its lease has ended, and then continue. No lock can stop it. The store
//! that it writes to can refuse the write: give it the [`FencingToken`], and have it refuse smaller tokens than it has seen.
//! A server that loses its data has forgotten its locks, but fencing tokens still grow. With several servers
//! ([`LockManager::redlock`]) locks are forgotten only if a majority loses its data.
//!
//! A client that does not queue, such as another library, has no turn among readers that overlap: it finds the key busy.
//!
//! # Telemetry
//!
//! Through `tracing`, an event that needs attention is a warning: for example a lost lease, or a lock that is released late. At the
//! level `DEBUG` there are the spans `lock_wait` and `lock_hold`, the second around the body. Each has the `key`, the `template`
//! that the key was made from, and the `fencing_token`. An event at the end of each span has the time that it took.
//!
//! Through `metrics`, if that feature is on:
//!
//! - the histograms `lock_wait_seconds` and `lock_hold_seconds`;
//! - the gauges `lock_waiting` and `lock_held`;
//! - the counters `lock_acquired_total`, `lock_busy_total`, `lock_unavailable_total` and `lock_abandoned_total`;
//! - the counter `lock_lost_total`, with its `reason`;
//! - the counter `lock_once_total` (feature `once`), with its `outcome`: `ran`, `replayed`, `refused` or `not_stored`;
//! - the counter `lock_handoffs_total`, of the `kind` `local` (from task to task) or `remote` (from another process).
//!
//! The label `mode` is `exclusive`, `shared` or `permits`. The label `key` is the template, or `other` for a key that was made from
//! a text. It is never a value of a key, so there are at most three series for each template of the program.
//!
//! Without a subscriber, `tracing` costs one check of a level. Without its feature, `metrics` is not compiled in.
//!
//! # Features
//!
//! - `macros` (default): the attribute [`macro@distributed_lock`] and the macro [`macro@key`].
//! - `redis` (default): Redis and Valkey, on one server, behind sentinels, in a cluster, or on several independent servers; see
//!   [`LockManager::connect`]. Without it, locks are inside the process only.
//! - `once`: [`LockManager::run_once`] and its attribute, for a body that runs once, with a result for every caller.
//!   With `axum` or `poem`, the result can be a response. With `axum`, `IdempotencyKey` extracts the client's key from a request.
//! - `metrics`: counters, gauges and histograms through the facade of the crate `metrics`; see [telemetry](#telemetry).
//! - `testing`: `LockManager::in_memory_with_faults`, for the tests of your own code. It belongs in `[dev-dependencies]`.
//! - `tls`: `rediss://` and `valkeys://` urls, through rustls. Its build needs a C compiler.
//! - `axum`, `actix`, `poem`, `tonic`: each web framework's response for a [`LockError`], and annotated handlers that return its
//!   `impl IntoResponse` or `impl Responder`.
//! - `http` (with `axum` and `poem`): a [`LockError`] becomes a status code or a response of the crate `http`.
//! - `cli`: the program `lockctl`, for operators: `cargo install lock-core --features cli`.
//! - `stream` (with each web framework): `LockGuard::hold_during`, for a lock that is held until a stream ends.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(feature = "redis"),
    expect(
        dead_code,
        reason = "the waist and the runtime have more than locks in memory use"
    )
)]

mod assert_held;
#[cfg(feature = "redis")]
pub mod credentials;
mod error;
mod failure;
pub mod fenced;
mod fencing;
pub mod inspect;
mod key;
mod mode;
mod moment;
#[cfg(feature = "once")]
mod once;
mod options;
mod template;
#[cfg(feature = "tls")]
mod tls;

mod runtime;
mod telemetry;

mod backend;

mod driver;
mod engine;

mod guard;
mod lease;

mod manager;
mod private;

mod integrations;
#[cfg(feature = "testing")]
pub mod testing;

#[cfg(all(doc, not(doctest), feature = "macros"))]
pub mod guide;

/// The items that the attribute's output calls, and nothing else. Not covered by any promise of stability.
#[doc(hidden)]
pub mod __private {
    pub use crate::assert_held::*;
    #[cfg(feature = "once")]
    pub use crate::once::attribute::*;
    pub use crate::private::*;
}

/// For lock-core's own tests. Not covered by any promise of stability.
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod __simulation {
    pub use crate::{
        lease::certain_for,
        manager::waist::{Claim, Tried},
        runtime::{
            Work,
            simulation::{Connecting, Entered, SimulatedStream, Thread, World, enter},
        },
    };
}

#[cfg(all(feature = "axum", feature = "once"))]
pub use crate::once::idempotency_key::IdempotencyKey;
pub use error::{FromLockError, LeaseLost, LockError, Repeat, Skipped};
pub use fencing::FencingToken;
pub use guard::LockGuard;
pub use key::{IntoLockKey, KeyPart, LockKey};
pub use lease::Lease;
#[cfg(all(feature = "macros", feature = "once"))]
pub use lock_macros::run_once;
// So that the compiler's message names the feature, however the attribute is imported.
#[cfg(all(feature = "macros", not(feature = "once")))]
#[doc(hidden)]
pub use lock_macros::__without_once as run_once;
#[cfg(feature = "macros")]
pub use lock_macros::{distributed_lock, key};
pub use manager::{
    AcquireFuture, LockManager, LockManagerBuilder, LockSource, current_lease, set_global,
    with_locks,
};
#[cfg(feature = "once")]
pub use once::{OnceOptions, Remember, Remembered};
pub use options::{KeyInList, LockOptions, OnLost};
#[cfg(feature = "tls")]
pub use tls::Tls;

/// A lock that is held until a stream ends: `LockGuard::hold_during`.
#[cfg(feature = "stream")]
pub mod stream {
    pub use crate::integrations::stream::HeldStream;
}

/// The client crate `redis`, in the version that [`LockManagerBuilder::client`] takes.
#[cfg(feature = "redis")]
pub mod redis {
    pub use ::redis::*;

    /// Hides the enum `ValueType` of the crate `redis`, which has a variant `String`. With two public names `String`, the
    /// compiler's errors about every program that uses this crate would say `std::string::String`.
    #[expect(dead_code, hidden_glob_reexports, reason = "it is there for its name")]
    enum ValueType {}
}
