//! What a guard owns: the holding of one key as a rule, or those of several, which come and go together.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    slice,
    sync::Arc,
    task::Poll,
};

use crate::{
    error::LockError,
    lock::held::{holding::Holding, lease_set::Leases},
};

/// Never none.
pub(crate) enum Holdings {
    One(Arc<Holding>),
    /// In a box, so that a guard of one key stays small.
    Several(Box<JoinedHoldings>),
}

/// In the order in which the keys were written.
pub(crate) struct JoinedHoldings {
    each: Vec<Arc<Holding>>,
    leases: Leases,
}

impl Holdings {
    /// Joins holdings, of which there are several.
    pub(crate) fn several(each: Vec<Arc<Holding>>) -> Self {
        let leases = each.iter().map(|holding| holding.lease().clone()).collect();
        let leases = Leases::Several(leases);
        Self::Several(Box::new(JoinedHoldings { each, leases }))
    }

    pub(crate) fn all(&self) -> &[Arc<Holding>] {
        match self {
            Self::One(holding) => slice::from_ref(holding),
            Self::Several(several) => &several.each,
        }
    }

    pub(crate) fn leases(&self) -> Leases {
        match self {
            Self::One(holding) => Leases::One(holding.lease().clone()),
            Self::Several(several) => several.leases.clone(),
        }
    }

    /// Releases what nobody shares, all at the same time, and waits for the word of the backend.
    ///
    /// Dropping the future leaves the releases under way.
    pub(crate) async fn release(self) -> Result<(), LockError> {
        match self {
            Self::One(holding) => match Arc::into_inner(holding).map(Holding::release) {
                Some(releasing) => releasing.await,
                None => Ok(()),
            },
            // In a box, so that the future of one release stays small.
            Self::Several(several) => Box::pin(several.release()).await,
        }
    }
}

impl JoinedHoldings {
    async fn release(self: Box<Self>) -> Result<(), LockError> {
        let Self { each, leases } = *self;
        // Looked at before the release: the key that was lost is named, and not those that were lost with it.
        let mut result = leases.check();
        let mut waiting: Vec<_> = each
            .into_iter()
            .filter_map(|holding| Arc::into_inner(holding).map(Holding::release))
            .collect();
        poll_fn(|context| {
            waiting.retain_mut(|release| match Pin::new(release).poll(context) {
                Poll::Pending => true,
                Poll::Ready(other) => {
                    note(&mut result, other);
                    false
                }
            });
            if waiting.is_empty() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        result
    }
}

/// Keeps what the caller has to know most: a loss, else the first failure.
fn note(result: &mut Result<(), LockError>, other: Result<(), LockError>) {
    let is_loss = |result: &Result<(), LockError>| matches!(result, Err(LockError::Lost { .. }));
    if result.is_ok() || (is_loss(&other) && !is_loss(result)) {
        *result = other;
    }
}
