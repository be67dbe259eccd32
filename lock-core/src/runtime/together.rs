//! Futures that are polled at the same time, and awaited together.

use std::{future::poll_fn, task::Poll};

/// Polls all futures in the calling task, so that none delays another one, and waits for all of them. Returns their results
/// in the order of the futures.
pub(crate) async fn together<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let each = futures.into_iter();
    let mut each: Vec<_> = each.map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        for (future, output) in each.iter_mut().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(ready) = future.as_mut().poll(context) {
                *output = Some(ready);
            }
        }
        if each.iter().any(|(_, output)| output.is_none()) {
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
    each.into_iter().filter_map(|(_, output)| output).collect()
}
