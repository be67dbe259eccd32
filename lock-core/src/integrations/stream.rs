//! A lock that is held until a stream ends.
//!
//! Rejected: an attribute that wraps the stream, because `on_lost`, `max_hold` and the errors of items would have a
//! different meaning there.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;

use crate::{
    error::{LeaseLost, LockError},
    guard::LockGuard,
    lease::Lease,
};

/// A stream that ends with its lock, returned by [`LockGuard::hold_during`].
///
/// It yields the items of the inner stream. When the lease is lost, the task that waits for an item is woken, the inner
/// stream is dropped, and the last item is an `Err` with [`LockError::Lost`]. The inner stream is dropped only when the
/// task polls. When the inner stream ends, or this value is dropped, the lock is released in the background, within one
/// round trip.
///
/// Like a body of [`LockManager::run`](crate::manager::LockManager::run), the inner stream is not polled again after the
/// lease has ended, even if the process was paused at the time. A slow reader holds the lock for a long time, which the
/// guard's `max_hold` bounds.
#[must_use = "the lock is released as soon as the stream is dropped"]
pub struct HeldStream<S> {
    /// `None` after the stream has ended.
    held: Option<Held<S>>,
}

/// A stream that is read under a lock. The fields are dropped in declaration order, because the stream must be gone
/// before the lock is released.
pub(super) struct Held<S> {
    pub(super) stream: Pin<Box<S>>,
    lost: Pin<Box<dyn Future<Output = LeaseLost> + Send + Sync>>,
    /// Must be the last field, since its drop releases the lock.
    guard: LockGuard,
}

impl LockGuard {
    /// Holds the lock until the stream ends or is dropped.
    ///
    /// Use it for the body of a response, which is sent after its handler has returned.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use futures_util::{StreamExt, stream};
    /// use lock_core::{LockError, LockManager, LockOptions};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let options = LockOptions::new(Duration::from_secs(10));
    /// let guard = locks.acquire("export", options.clone()).await?;
    /// let mut rows = guard.hold_during(stream::iter([Ok::<_, LockError>("a row"), Ok("another")]));
    ///
    /// assert_eq!(rows.next().await.transpose()?, Some("a row"));
    /// assert!(locks.try_acquire("export", options.clone()).await?.is_none());
    /// drop(rows); // as when the client disconnects; reading to the end has the same effect
    /// locks.acquire("export", options).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold_during<S, T, E>(self, stream: S) -> HeldStream<S>
    where
        S: Stream<Item = Result<T, E>>,
        E: From<LockError>,
    {
        HeldStream {
            held: Some(Held::new(stream, self)),
        }
    }
}

impl<S> HeldStream<S> {
    /// Returns the lease under which the stream is read, or `None` after the stream has ended.
    #[must_use]
    pub fn lease(&self) -> Option<Lease> {
        self.held.as_ref().map(|held| held.guard.lease())
    }
}

impl<S> Held<S> {
    pub(super) fn new(stream: S, guard: LockGuard) -> Self {
        let lease = guard.lease();
        Self {
            stream: Box::pin(stream),
            lost: Box::pin(async move { lease.lost().await }),
            guard,
        }
    }

    /// Polls for the next item, which is an error if the lease was lost. After the last item, the stream is dropped and the
    /// lock is released.
    pub(super) fn poll<T, E: From<LockError>>(
        held: &mut Option<Self>,
        context: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<Option<Result<T, E>>>,
        is_last: impl FnOnce(Option<&Result<T, E>>) -> bool,
    ) -> Poll<Option<Result<T, E>>> {
        let Some(inner) = held else {
            return Poll::Ready(None);
        };
        if let Err(error) = inner.check(context) {
            *held = None;
            return Poll::Ready(Some(Err(error.into())));
        }
        let item = ready!(poll(inner.stream.as_mut(), context));
        if is_last(item.as_ref()) {
            *held = None;
        }
        Poll::Ready(item)
    }

    /// Checks the lease before each poll of the stream, as `while_held` does for a body.
    fn check(&mut self, context: &mut Context<'_>) -> Result<(), LockError> {
        let leases = self.guard.hold().leases();
        leases.check()?;
        if self.lost.as_mut().poll(context).is_ready() {
            leases.check()?;
        }
        Ok(())
    }
}

impl<S, T, E> Stream for HeldStream<S>
where
    S: Stream<Item = Result<T, E>>,
    E: From<LockError>,
{
    type Item = Result<T, E>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<T, E>>> {
        Held::poll(&mut self.held, context, S::poll_next, |item| item.is_none())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let most = self.held.as_ref().map_or(Some(0), |held| {
            // A loss adds one item.
            held.stream.size_hint().1?.checked_add(1)
        });
        (0, most)
    }
}

impl<S> fmt::Debug for HeldStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldStream")
            .field("lease", &self.lease())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
        time::Duration,
    };

    use futures_util::{StreamExt as _, stream};

    use super::*;
    use crate::{manager::LockManager, options::LockOptions};

    /// A stream that never ends, and counts its items.
    struct Counting(Arc<AtomicUsize>);

    impl Stream for Counting {
        type Item = Result<usize, LockError>;

        fn poll_next(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<usize, LockError>>> {
            Poll::Ready(Some(Ok(self.0.fetch_add(1, SeqCst))))
        }

        fn size_hint(&self) -> (usize, Option<usize>) {
            (3, Some(3))
        }
    }

    /// Returns a guard whose lease ends after a second.
    async fn held() -> LockGuard {
        let options = LockOptions::new(Duration::from_secs(1)).without_renewal();
        let guard = LockManager::in_memory().acquire("k", options).await;
        guard.expect("a free lock")
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_whose_lease_has_ended_is_dropped_and_not_polled_again() {
        let polls = Arc::default();
        let mut stream = held().await.hold_during(Counting(Arc::clone(&polls)));
        assert!(matches!(stream.next().await, Some(Ok(0))));
        // The clock has not been read since, as after a pause of the whole process.
        tokio::time::advance(Duration::from_secs(2)).await;
        let lost = stream.next().await;
        assert!(matches!(
            lost,
            Some(Err(LockError::Lost {
                reason: LeaseLost::Expired,
                ..
            }))
        ));
        assert_eq!(polls.load(SeqCst), 1);
        assert_eq!(Arc::strong_count(&polls), 1, "the stream is gone");
        assert!(stream.lease().is_none());
        assert!(stream.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_waits_gets_the_loss_as_its_last_item() {
        let pending = stream::pending::<Result<u8, LockError>>();
        let mut stream = held().await.hold_during(pending);
        let item = tokio::time::timeout(Duration::from_secs(2), stream.next()).await;
        assert!(matches!(item, Ok(Some(Err(LockError::Lost { .. })))));
    }

    #[tokio::test]
    async fn the_size_hint_includes_an_item_for_a_loss() {
        let stream = held().await.hold_during(Counting(Arc::default()));
        assert_eq!(stream.size_hint(), (0, Some(4)));
    }
}
