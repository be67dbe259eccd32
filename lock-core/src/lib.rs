//! Distributed locks for async Rust services.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod alarm;
mod arbiter;
mod backend;
mod clock;
mod engine;
mod error;
mod guard;
mod holding;
mod inspect;
#[cfg(feature = "redis")]
mod io_thread;
mod key;
mod lease;
mod line;
mod manager;
mod options;
mod private;
mod reentry;
mod release;
mod renewal;
mod schedule;
mod seeker;
mod spawner;
mod token;
mod trail;

/// What the attribute's output calls, and nothing else. Not covered by any promise of stability.
#[doc(hidden)]
pub mod __private {
    pub use crate::{private::*, reentry::assert_holds};
}

pub use error::{FromLockError, LockError, Skipped};
pub use guard::LockGuard;
pub use inspect::{Health, Holder, LockInfo};
pub use key::{IntoLockKey, KeyPart, LockKey};
pub use lease::{Lease, LeaseLost};
#[cfg(feature = "macros")]
pub use lock_macros::{distributed_lock, key};
pub use manager::{LockManager, LockManagerBuilder, LockSource, current, set_global, with_locks};
pub use options::{LockOptions, OnLost};
pub use token::FencingToken;
