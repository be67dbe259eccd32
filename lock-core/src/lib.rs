//! Distributed locks for async Rust, on Redis or Valkey, declared with an attribute.
//!
//! ```no_run
//! # #[cfg(all(feature = "macros", feature = "redis"))]
//! # mod example {
//! use lock_core::{LockError, LockManager, distributed_lock, set_global};
//!
//! // A handler, or a job: only one call per order runs at a time, across all processes.
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
//! The `ttl` is how long a crash blocks others. While the body runs, a thread of the manager renews the lease, so the work
//! may take longer. If the lease is lost, the body is dropped, and the caller gets [`LockError::Lost`].
//!
//! Without the attribute, [`LockManager::run`] runs a body under a lock, and [`LockManager::acquire`] returns a
//! [`LockGuard`]:
//!
//! ```no_run
//! # use std::time::Duration;
//! # use lock_core::{LockError, LockManager, LockOptions};
//! # async fn by_hand(locks: &LockManager) -> Result<(), LockError> {
//! let options = LockOptions::new(Duration::from_secs(10)).wait(Duration::from_secs(2));
//! let guard = locks.acquire("nightly-report", options).await?;
//! // … the work …
//! guard.release().await
//! # }
//! ```
//!
//! # Where to look
//!
//! | you want | see |
//! | --- | --- |
//! | all options of the attribute, and all urls | [`macro@distributed_lock`], [overview](guide::overview) |
//! | readers and writers; at most n at a time | [`LockOptions::shared`], [`LockOptions::permits`] |
//! | several locks at once | [`LockManager::run_all`], [`LockManager::acquire_all`] |
//! | a body that runs once, with a result for every caller | `run_once`, with the `once` feature; [web frameworks](guide::web) |
//! | one leader; a job on one replica; a cache stampede | [leader election](guide::leader), [recipes](guide::recipes) |
//! | a store that refuses late writes | [`FencingToken`], [`fenced`] |
//! | responses of axum, actix, poem and tonic | [web frameworks](guide::web) |
//! | tests without a server, and faults on demand | [`LockManager::in_memory`], [`with_locks`], the `testing` feature |
//! | to inspect, free and check locks | [`LockManager::inspect`], [`LockManager::check`], [operations](guide::operations) |
//! | to evaluate this crate | [reliability](guide::reliability), [performance](guide::performance), [comparison](guide::comparison), [versions](guide::versions) |
//! | other servers and proxies; migration from another lock | [servers](guide::servers), [migrating](guide::migrating) |
//!
//! # What happens if …
//!
//! - **… Redis dies?** Leases stay valid for the rest of their ttl, and are renewed if Redis comes back in time. If it does
//!   not, each lease is lost shortly before it would expire on the server. New acquires are retried until their wait is
//!   over, and then return [`LockError::Unavailable`].
//! - **… a future is dropped?** The lock is released in the background within one round trip, even if its acquire was still
//!   in flight. If the connection is gone too, the lock ends with its ttl.
//! - **… the process forks?** A manager works only in the process that made it: make one [after the
//!   fork](LockManager#forking).
//! - **… the process is paused in the middle of a step until its lease has ended, and then continues?** No lock can stop
//!   it. The store that it writes to can refuse it, by comparing the [`FencingToken`].
//! - **… a server loses its data?** Its locks are gone, but fencing tokens still grow. With several servers
//!   ([`LockManager::redlock`]), locks are lost only if a majority of them loses its data.
//!
//! # Telemetry
//!
//! Events that need attention, such as a lost lease, are `tracing` warnings. At the level `DEBUG` there are the spans
//! `lock_wait` and, around the body, `lock_hold`, with the `key`, its `template` and the `fencing_token`. The
//! `metrics` feature adds counters, gauges and histograms through the `metrics` crate: [operations](guide::operations) lists
//! them. Their label `key` is the template, never a value.
//!
//! # Features
//!
//! - `macros` (default): the attribute [`macro@distributed_lock`] and the macro [`macro@key`].
//! - `redis` (default): Redis and Valkey, on one server, behind sentinels, in a cluster, or on several independent servers.
//!   Without it, locks exclude only the tasks of one process.
//! - `tls`: `rediss://` and `valkeys://` urls, through rustls. Its build needs a C compiler.
//! - `once`: [`LockManager::run_once`] and its attribute. With `axum` or `poem`, the result can be a response; with `axum`,
//!   `IdempotencyKey` extracts the client's key.
//! - `axum`, `actix`, `poem`, `tonic`: a [`LockError`] as a response, and handlers that return `impl IntoResponse` or
//!   `impl Responder`.
//! - `http` (part of `axum` and `poem`): a [`LockError`] as a status code or a response of the `http` crate.
//! - `stream` (part of each web framework): `LockGuard::hold_during`, for a lock that is held until a stream ends.
//! - `metrics`: counters, gauges and histograms; see [telemetry](#telemetry).
//! - `testing`: `LockManager::in_memory_with_faults`, for `[dev-dependencies]`.
//! - `cli`: the program `lockctl`: `cargo install lock-core --features cli`.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(feature = "redis"),
    expect(
        dead_code,
        reason = "locks in memory use only a part of the waist and of the runtime"
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

// Declared after `manager`, because rustdoc lists methods in the order of the modules, and `run_once` should not come
// first.
#[cfg(feature = "once")]
mod once;

mod integrations;
#[cfg(feature = "testing")]
pub mod testing;

#[cfg(all(doc, not(doctest), feature = "macros"))]
pub mod guide;

/// The items that the attributes' generated code calls. Not covered by any promise of stability.
#[doc(hidden)]
pub mod __private {
    pub use crate::assert_held::*;
    #[cfg(feature = "once")]
    pub use crate::once::attribute::*;
    pub use crate::private::*;
}

/// The hooks of lock-core's own simulation tests. Not covered by any promise of stability.
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
// Without the feature, this stand-in makes the compiler's message name the feature, however the attribute is imported.
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

    /// Hides the enum `ValueType` of the `redis` crate, which has a variant `String`. With two public names `String`,
    /// the compiler's errors about every program that uses this crate would say `std::string::String`.
    #[expect(dead_code, hidden_glob_reexports, reason = "only its name matters")]
    enum ValueType {}
}
