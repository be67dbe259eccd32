//! The leases of one guard, as one: each is that of a single key, and the loss of one is the loss of all.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    slice,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use crate::{
    error::{LeaseLost, LockError},
    lock::held::lease_state::LeaseState,
};

/// One lease, as a rule, or those of several keys, in the order in which the keys were written. Never none.
#[derive(Clone)]
pub(crate) enum Leases {
    One(Arc<LeaseState>),
    Several(Arc<[Arc<LeaseState>]>),
}

impl Leases {
    pub(crate) fn all(&self) -> &[Arc<LeaseState>] {
        match self {
            Self::One(lease) => slice::from_ref(lease),
            Self::Several(leases) => leases,
        }
    }

    pub(crate) fn first(&self) -> &Arc<LeaseState> {
        &self.all()[0]
    }

    /// Makes the loss of one the loss of all.
    pub(crate) fn tie(&self) {
        if let Self::Several(leases) = self {
            for lease in &**leases {
                lease.tie(leases);
            }
        }
    }

    /// Which of them has ended and how, if one has: one that ended by itself, rather than with another.
    pub(crate) fn ended(&self) -> Option<(&LeaseState, LeaseLost)> {
        let mut with_another = None;
        for lease in self.all() {
            match lease.ended() {
                None => {}
                Some(LeaseLost::OtherKey) => with_another = Some((&**lease, LeaseLost::OtherKey)),
                Some(reason) => return Some((lease, reason)),
            }
        }
        with_another
    }

    /// Fails with the loss, if there is one.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        match self.ended() {
            None => Ok(()),
            Some((lease, reason)) => Err(lease.lost_error(reason)),
        }
    }

    /// Waits until one of them has ended, and returns how.
    pub(crate) async fn lost(&self) -> LeaseLost {
        if let Self::One(lease) = self {
            return lease.lost().await;
        }
        let mut each: Vec<_> = self
            .all()
            .iter()
            .map(|lease| Box::pin(lease.lost()))
            .collect();
        let reason = poll_fn(|context| {
            each.iter_mut()
                .map(|lost| lost.as_mut().poll(context))
                .find(Poll::is_ready)
                .unwrap_or(Poll::Pending)
        })
        .await;
        self.ended().map_or(reason, |(_, reason)| reason)
    }

    /// The same for an observer, who does not end what has run out.
    #[cfg(feature = "simulation")]
    pub(crate) fn certain_for(&self) -> Duration {
        let each = self.all().iter().map(|lease| lease.certain_for());
        each.min().unwrap_or_default()
    }

    /// Until the first of them ends.
    pub(crate) fn remaining(&self) -> Duration {
        let each = self.all().iter().map(|lease| lease.remaining());
        each.min().unwrap_or_default()
    }
}

/// Runs a body as long as its lease holds: the loss if it ends first.
///
/// The clock is looked at before each poll of the body, so that a process which slept through the end of its lease does
/// not take one more step: a plain `select!` polls the body first as often as not. What remains is a stop in the middle
/// of a step, which only a fencing token can make harmless.
pub(crate) async fn while_held<T>(
    leases: &Leases,
    body: impl Future<Output = T>,
) -> Result<T, LockError> {
    let mut body = pin!(body);
    let mut lost = pin!(leases.lost());
    poll_fn(|context| {
        // `lost` looks at the clock whenever it is polled for the first time or after a signal, not at each poll.
        leases.check()?;
        if lost.as_mut().poll(context).is_ready() {
            leases.check()?;
        }
        body.as_mut().poll(context).map(Ok)
    })
    .await
}
