//! What the registry is to the parts that report events to it.

use std::{sync::Arc, task::Waker, time::Duration};

use crate::{key::LockKey, lock::key_state::Event, mode::RequestKind, store::owner::Owner};

pub(crate) type LiveEvent<'a> = Event<'a, Waker, Arc<Owner>>;

pub(crate) trait EventListener: Send + Sync {
    /// Makes the transition of an event, and carries out what follows from it.
    fn happened(self: Arc<Self>, key: &LockKey, kind: RequestKind, event: LiveEvent<'_>);

    /// Sends a batch of renewals. A reply may take so long.
    fn renew(self: Arc<Self>, batch: Vec<RenewalDue>, within: Duration);

    /// The time of a round trip to the backend.
    fn round_trip(&self) -> Duration;

    /// The task of the timers has ended, with the runtime that it ran on. Waiters and observers of leases look again, which starts
    /// another.
    fn rouse_all(&self);
}

/// A lease that is to be renewed.
#[derive(Clone)]
pub(crate) struct RenewalDue {
    pub(crate) owner: Arc<Owner>,
    pub(crate) ttl: Duration,
    /// How many fencing tokens are wanted.
    pub(crate) tokens: u32,
}
