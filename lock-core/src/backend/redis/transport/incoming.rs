//! Replies and pushes, read from a stream by the parser of the crate `redis`.

use std::{
    io::{self, Read},
    pin::Pin,
    task::{Context, Poll, ready},
};

use redis::{Parser, Value};
use tokio::io::{AsyncRead, ReadBuf};

use crate::backend::redis::transport::traffic::NoReply;

/// The longest reply, in bytes. A hostile server may announce one of any length. The longest that is expected is the map of a cluster
/// in which each slot is a range of its own, with 8 MiB.
const LONGEST: usize = 64 << 20;

/// What has been read of a stream, up to the next whole value.
#[derive(Default)]
pub(super) struct Incoming {
    /// Keeps the part of a value that has been read.
    parser: Parser,
    /// How many bytes have been read since the last value.
    length: usize,
}

impl Incoming {
    /// Reads the next value. `None`: more has to arrive, and the task of the context will be woken.
    ///
    /// # Errors
    ///
    /// If the stream has ended, or what arrives is not the Redis protocol, or too long.
    pub(super) fn poll_value(
        &mut self,
        stream: Pin<&mut (impl AsyncRead + ?Sized)>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Value, NoReply>> {
        let mut bytes = Bytes {
            stream,
            context,
            length: &mut self.length,
            stopped: None,
        };
        let parsed = self.parser.parse_value(&mut bytes);
        let stopped = bytes.stopped;
        match parsed {
            Ok(value) => {
                self.length = 0;
                Poll::Ready(Ok(value))
            }
            Err(_) => match stopped {
                Some(Poll::Pending) => Poll::Pending,
                Some(Poll::Ready(NoReply::Broken(why))) if self.length > 0 => {
                    Poll::Ready(Err(NoReply::Cut(why)))
                }
                Some(Poll::Ready(why)) => Poll::Ready(Err(why)),
                None => Poll::Ready(Err(NoReply::Nonsense)),
            },
        }
    }
}

/// A stream as the parser reads it. The parser continues where it stopped, with the value that it has begun.
struct Bytes<'a, 'b, S: ?Sized> {
    stream: Pin<&'a mut S>,
    context: &'a mut Context<'b>,
    length: &'a mut usize,
    /// Why the last read has returned nothing.
    stopped: Option<Poll<NoReply>>,
}

impl<S: AsyncRead + ?Sized> Read for Bytes<'_, '_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.poll(buffer);
        let Poll::Ready(Ok(count)) = read else {
            self.stopped = Some(read.map(|read| match read {
                Err(why) => why,
                Ok(_) => NoReply::Nonsense,
            }));
            return Err(io::ErrorKind::WouldBlock.into());
        };
        Ok(count)
    }
}

impl<S: AsyncRead + ?Sized> Bytes<'_, '_, S> {
    fn poll(&mut self, buffer: &mut [u8]) -> Poll<Result<usize, NoReply>> {
        let mut buffer = ReadBuf::new(buffer);
        let read = ready!(self.stream.as_mut().poll_read(self.context, &mut buffer));
        let count = buffer.filled().len();
        *self.length += count;
        Poll::Ready(match read {
            Err(error) => Err(NoReply::of(&error)),
            Ok(()) if count == 0 => Err(NoReply::Broken("the server closed the connection".into())),
            Ok(()) if *self.length > LONGEST => Err(NoReply::Nonsense),
            Ok(()) => Ok(count),
        })
    }
}
