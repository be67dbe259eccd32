//! Having a request leave together with those that others make in the same breath.
//!
//! One system call for each request would cost more than all the rest of a lock. So whoever made one lets the other tasks
//! of its runtime run that are ready, and make theirs; the first that has its turn again hands all of them to the backend, which
//! sends them at once or, while many others are on their way, soon.

use std::task::{Context, Poll};

use crate::store::Store;

/// A request that was made at once and may not have been handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingFlush {
    Buffered,
    /// The others have their turn.
    Yielding,
    Flushed,
}

impl PendingFlush {
    /// Ready when the backend sees to the request.
    pub(crate) fn poll(&mut self, store: &dyn Store, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Buffered => {
                *self = Self::Yielding;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Self::Yielding | Self::Flushed => {
                self.flush_now(store);
                Poll::Ready(())
            }
        }
    }

    /// For whoever cannot wait, or goes away.
    pub(crate) fn flush_now(&mut self, store: &dyn Store) {
        if std::mem::replace(self, Self::Flushed) != Self::Flushed {
            store.flush();
        }
    }
}
