//! The guides: one page for each subject, as they were when this version was released.
//!
//! - [Overview](overview): the README, with all options and urls.
//! - [Recipes](recipes): things that are often built with a lock, each in twenty lines.
//! - [Leader election](leader): one of several processes does the work, and if it fails, another one takes over.
//! - [Web frameworks](web): responses to clients, streams, and repeated requests.
//! - [Reliability](reliability): the promises, their limits, and what happens in each failure.
//! - [Operations](operations): servers, sizes, rights, metrics, and what to do when locks fail.
//! - [Servers](servers): which servers, managed services and proxies can hold locks, and the url for each.
//! - [Migrating](migrating): from another lock to this one, service by service.
//! - [Performance](performance): what a lock costs.
//! - [Comparison](comparison): other libraries, and where they are better.
//! - [Versions](versions): what a version number promises, and which versions can run side by side.
//!
//! The life of one lock:
//!
#![doc = lock_macros::__guide!("docs/life.svg")]

#[doc = lock_macros::__guide!("README.md")]
pub mod overview {}

#[doc = lock_macros::__guide!("docs/recipes.md")]
pub mod recipes {}

#[doc = lock_macros::__guide!("docs/leader.md")]
pub mod leader {}

#[doc = lock_macros::__guide!("docs/web.md")]
pub mod web {}

#[doc = lock_macros::__guide!("docs/reliability.md")]
pub mod reliability {}

#[doc = lock_macros::__guide!("docs/operations.md")]
pub mod operations {}

#[doc = lock_macros::__guide!("docs/servers.md")]
pub mod servers {}

#[doc = lock_macros::__guide!("docs/migrating.md")]
pub mod migrating {}

#[doc = lock_macros::__guide!("docs/performance.md")]
pub mod performance {}

#[doc = lock_macros::__guide!("docs/comparison.md")]
pub mod comparison {}

#[doc = lock_macros::__guide!("docs/versions.md")]
pub mod versions {}
