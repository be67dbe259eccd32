//! Response bodies of the `http-body` crate: how to detect that a body is complete, and to keep a lock until it has
//! ended.

use std::{
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use http_body::{Body, Frame, SizeHint};

use crate::{
    error::LockError, guard::LockGuard, integrations::stream::Held, manager::run::Finished,
};

/// A body that keeps a lock until it has ended; `None` after that. It ends with an error when the lease is lost, so that
/// the client can tell a loss from a complete body. `E` is the error of the framework.
pub(crate) struct HeldBody<B, E>(Option<Held<B>>, PhantomData<fn() -> E>);

impl<B, E> HeldBody<B, E> {
    pub(crate) fn new(body: B, guard: LockGuard) -> Self {
        Self(Some(Held::new(body, guard)), PhantomData)
    }
}

impl<B: Body<Error: Into<E>>, E: From<LockError>> Body for HeldBody<B, E> {
    type Data = B::Data;
    type Error = E;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Self::Error>>> {
        let poll = |body: Pin<&mut B>, context: &mut Context<'_>| {
            body.poll_frame(context).map_err(Into::into)
        };
        let is_last = |frame: Option<&_>| !matches!(frame, Some(Ok(_)));
        Held::poll(&mut self.0, context, poll, is_last)
    }

    fn is_end_stream(&self) -> bool {
        let held = self.0.as_ref();
        held.is_none_or(|held| held.stream.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        // The size lets a client notice that the body ended early because the lease was lost.
        let held = self.0.as_ref();
        held.map_or_else(|| SizeHint::with_exact(0), |held| held.stream.size_hint())
    }
}

/// A body that has been checked for completeness. It still has all of its frames.
pub(crate) struct Peeked<B: Body> {
    /// The first frame, which the check has taken out of the body.
    pub(crate) first: Option<Result<Frame<B::Data>, B::Error>>,
    rest: B,
    /// The size of the first frame and the rest together.
    size: SizeHint,
    /// `true` if the body is empty, or consists of a first frame of data. Any other body may be produced while it is sent.
    pub(crate) is_complete: bool,
}

impl<B: Body + Unpin> Peeked<B> {
    /// Checks whether a body is complete. A body with a known size may be in memory, or may be produced while it is sent,
    /// like that of a file. Only a poll can tell: a body in memory ends with its first frame. The poll may use a waker that
    /// does nothing, because every body that is sent is polled again, with another waker.
    pub(crate) fn of(mut rest: B) -> Self {
        let size = rest.size_hint();
        let (mut first, mut is_complete) = (None, rest.is_end_stream());
        if !is_complete && size.exact().is_some() {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(frame) = Pin::new(&mut rest).poll_frame(&mut context) {
                is_complete = frame.as_ref().is_none_or(|frame| {
                    matches!(frame, Ok(frame) if frame.is_data()) && rest.is_end_stream()
                });
                first = frame;
            }
        }
        Self {
            first,
            rest,
            size,
            is_complete,
        }
    }

    /// Converts the body to the framework's type with `boxed`. If it is produced while it is sent, and may keep the lock,
    /// `hold` gives it the guard. Otherwise the guard is returned, and must be released now.
    pub(crate) fn until_sent<T>(
        self,
        lock: Finished<'_>,
        boxed: impl FnOnce(Self) -> T,
        hold: impl FnOnce(T, LockGuard) -> T,
    ) -> (T, Option<LockGuard>) {
        if self.is_complete {
            return (boxed(self), Some(lock.guard));
        }
        lock.until_end(boxed(self), hold)
    }
}

impl<B> Body for Peeked<B>
where
    B: Body<Data: Unpin, Error: Unpin> + Unpin,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.first {
            Some(_) => self.size,
            None => self.rest.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, convert::Infallible};

    use super::*;

    /// A body of known size that yields these frames, and is pending once for each `None`.
    #[derive(Default)]
    struct Pieces {
        frames: VecDeque<Option<&'static [u8]>>,
        ends_with_the_last: bool,
    }

    impl Body for Pieces {
        type Data = &'static [u8];
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Self::Data>, Infallible>>> {
            match self.frames.pop_front() {
                Some(Some(data)) => Poll::Ready(Some(Ok(Frame::data(data)))),
                Some(None) => Poll::Pending,
                None => Poll::Ready(None),
            }
        }

        fn is_end_stream(&self) -> bool {
            self.ends_with_the_last && self.frames.is_empty()
        }

        fn size_hint(&self) -> SizeHint {
            let sizes = self.frames.iter().flatten().map(|data| data.len() as u64);
            SizeHint::with_exact(sizes.sum())
        }
    }

    fn pieces(frames: &[Option<&'static str>]) -> Pieces {
        let frames = frames.iter().map(|frame| frame.map(str::as_bytes));
        Pieces {
            frames: frames.collect(),
            ends_with_the_last: true,
        }
    }

    /// Returns the rest of a body, with its size before each poll.
    fn rest_of(
        mut body: impl Body<Data = &'static [u8], Error = Infallible> + Unpin,
    ) -> Vec<String> {
        let mut context = Context::from_waker(Waker::noop());
        let mut polled = Vec::new();
        while !body.is_end_stream() {
            let size = body.size_hint().exact().expect("a size");
            match Pin::new(&mut body).poll_frame(&mut context) {
                Poll::Ready(Some(Ok(frame))) => {
                    let data = frame.into_data().expect("data");
                    let text = std::str::from_utf8(data).expect("text");
                    polled.push(format!("{size} {text}"));
                }
                Poll::Ready(_) => break,
                Poll::Pending => polled.push("pending".to_owned()),
            }
        }
        polled
    }

    #[test]
    fn a_body_is_complete_if_it_ends_with_its_first_frame() {
        assert!(Peeked::of(pieces(&[])).is_complete);
        let whole = Peeked::of(pieces(&[Some("whole")]));
        assert!(whole.is_complete);
        assert_eq!(rest_of(whole), ["5 whole"]);
        let mut endless = pieces(&[]);
        endless.ends_with_the_last = false;
        assert!(Peeked::of(endless).is_complete);
    }

    #[test]
    fn a_peeked_body_keeps_its_first_frame_and_its_size() {
        let polled = |frames| {
            let body = Peeked::of(pieces(frames));
            assert!(!body.is_complete);
            rest_of(body)
        };
        assert_eq!(polled(&[None, Some("one")]), ["3 one"]);
        assert_eq!(
            polled(&[Some("one"), None, Some("more")]),
            ["7 one", "pending", "4 more"]
        );
    }

    #[test]
    fn a_body_without_a_size_is_not_polled() {
        struct Stream;

        impl Body for Stream {
            type Data = &'static [u8];
            type Error = Infallible;

            fn poll_frame(
                self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Self::Data>, Infallible>>> {
                panic!("polled");
            }
        }

        assert!(!Peeked::of(Stream).is_complete);
    }
}
