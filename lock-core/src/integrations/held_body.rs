//! The body of a response, of the crate `http-body`, that keeps a lock until it has ended.

use std::{
    error::Error,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http_body::{Body, Frame, SizeHint};

use crate::{error::LockError, guard::LockGuard, integrations::stream::Held};

/// Ends with `Err` when the lease is lost, so that the client can tell a loss from a complete body.
pub(super) struct HeldBody<B> {
    /// `None` after the end.
    held: Option<Held<B>>,
}

impl<B> HeldBody<B> {
    pub(super) fn new(body: B, guard: LockGuard) -> Self {
        Self {
            held: Some(Held::new(body, guard)),
        }
    }
}

impl<B> Body for HeldBody<B>
where
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>>,
{
    type Data = B::Data;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Self::Error>>> {
        let Some(held) = &mut self.held else {
            return Poll::Ready(None);
        };
        if let Err(error) = held.check(context) {
            self.held = None;
            return Poll::Ready(Some(Err(LockError::into(error))));
        }
        let frame = ready!(held.stream.as_mut().poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.held = None;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        let held = self.held.as_ref();
        held.is_none_or(|held| held.stream.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        // A loss may end the body at any time.
        SizeHint::new()
    }
}
