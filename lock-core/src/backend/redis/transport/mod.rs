//! Commands to a server and replies back, in order, on connections that are opened, watched and replaced.
//!
//! A connection is a *session* (`session.rs`): a task that owns a socket and an inbox. With a user's own client, it is a handle of
//! the `redis` crate instead. Requests on one connection are executed in the order in which they were sent, and a
//! connection never sends anything twice. The rest of this crate relies on both: a clean-up that is sent on the
//! connection of its request cannot overtake the request.
//!
//! Rejected: the crate's `ConnectionManager`, and its clients for clusters and sentinels. They replace connections and resend
//! commands behind one handle, so a clean-up could not follow its request on the same connection.

use crate::runtime::clock::Clock;

pub(crate) mod address;
mod authentication;
pub(crate) mod capabilities;
pub(crate) mod command;
pub(crate) mod connection;
pub(crate) mod connection_events;
pub(crate) mod errors;
pub(crate) mod exchange;
#[cfg(all(test, unix))]
mod facts;

pub(crate) mod handshake;
mod incoming;
pub(crate) mod known_primary;
mod lifecycle;
mod opening;
pub(crate) mod reconnecting;
pub(crate) mod redirect;
pub(crate) mod reply;
pub(crate) mod requests;
pub(crate) mod session;
mod socket;
mod stream;
#[cfg(feature = "tls")]
mod tls;
mod traffic;

pub(super) const CLOCK: Clock = Clock::Boot;
