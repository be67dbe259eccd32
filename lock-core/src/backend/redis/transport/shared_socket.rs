//! A socket of which the readiness can be asked from the runtime of a user, and from that of the manager's thread.
//!
//! A socket of tokio belongs to the reactor of one runtime. So each runtime that reads has a duplicate of the descriptor, which is
//! registered in its reactor. One of the duplicates is current. Reading and writing without any reactor is possible, too.

use std::{
    io::{self, Read, Write},
    mem::MaybeUninit,
    net::{Shutdown, TcpStream as StdTcpStream},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll, Waker, ready},
};

#[cfg(unix)]
use std::os::unix::net::UnixStream as StdUnixStream;

use socket2::SockRef;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use crate::{backend::redis::transport::byte_stream::Stream, runtime::mutex::Mutex};

/// How many reads one poll of a driver may make. A task of the user must not work for a fast server for ever.
const MOST_READS: u32 = 32;

/// What a poll of the driver may do with the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polling {
    /// Write only. A task of a user that has read would wake other tasks on its worker, and might then block that worker.
    Writes,
    Reads,
    /// Read and write, and leave the reactor alone, which may not run.
    WithoutReactor,
}

/// Of the standard library, and not blocking.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(StdTcpStream),
    #[cfg(unix)]
    Unix(StdUnixStream),
}

impl Socket {
    /// What sockets of all kinds can do.
    fn all(&self) -> SockRef<'_> {
        match self {
            Self::Tcp(socket) => SockRef::from(socket),
            #[cfg(unix)]
            Self::Unix(socket) => SockRef::from(socket),
        }
    }
}

/// A socket, and where it is registered.
pub(crate) trait Registrations: Send + Sync {
    /// Begins a poll of the driver. Called by the thread that polls it, before it does.
    fn begin(&self, polling: Polling);

    /// Whether no further read is allowed in that poll. If the driver was to read, it must be polled again soon.
    fn has_put_off_reads(&self) -> bool;

    /// Registers the socket in the reactor of the runtime that this thread is inside of.
    ///
    /// # Panics
    ///
    /// If that runtime has no reactor.
    fn register_here(&self) -> io::Result<Registration>;

    /// Makes another registration the current one, from the next poll of the driver on.
    fn replace(&self, registration: Registration);

    /// Has the reactor wake this task, from the next poll of the driver on. Before the first call, it wakes the driver.
    fn wake(&self, reader: Waker);

    /// Whether there is something to read, or something is left to be written, or the socket has ended.
    fn has_work(&self) -> bool;

    /// Ends the connection at both ends, whichever thread polls the driver.
    fn close(&self);
}

/// The stream that the driver reads and writes. Only the thread that polls the driver uses the registration, so no mutex is locked for
/// it.
pub(crate) struct SharedSocket {
    shared: Arc<RegisteredSocket>,
    /// `None` until the first reader has come.
    registration: Option<Registration>,
    /// The task that reads.
    reader: Option<Waker>,
}

struct RegisteredSocket {
    socket: Socket,
    /// Whether the last write found no room.
    is_full: AtomicBool,
    /// Whether this poll of the driver uses the reactor. Written by the thread that polls, as the number of reads is.
    has_reactor: AtomicBool,
    /// How many reads this poll may still make.
    reads_left: AtomicU32,
    /// Whether there is a change for the next poll.
    is_changed: AtomicBool,
    change: Mutex<Replacements>,
}

/// The registration and the waker that the stream uses from its next poll on.
#[derive(Default)]
struct Replacements {
    registration: Option<Registration>,
    reader: Option<Waker>,
}

/// A duplicate of the socket, registered in the reactor of one runtime.
pub(crate) type Registration = Box<dyn Stream>;

impl SharedSocket {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            shared: Arc::new(RegisteredSocket {
                socket,
                is_full: AtomicBool::new(false),
                has_reactor: AtomicBool::new(true),
                // A handshake is bounded by its time-out.
                reads_left: AtomicU32::new(u32::MAX),
                is_changed: AtomicBool::new(false),
                change: Mutex::default(),
            }),
            registration: None,
            reader: None,
        }
    }

    pub(crate) fn registrations(&self) -> Arc<dyn Registrations> {
        self.shared.clone()
    }

    /// The current registration, and the context with the reader's waker. `None`: the socket has not been registered yet.
    fn registered<'a>(
        &'a mut self,
        context: &'a Context<'_>,
    ) -> Option<(Pin<&'a mut dyn Stream>, Context<'a>)> {
        if self.shared.is_changed.load(Ordering::SeqCst) {
            // Before the change is taken: one that comes meanwhile is looked at once more.
            self.shared.is_changed.store(false, Ordering::SeqCst);
            let change = std::mem::take(&mut *self.shared.change.lock());
            self.registration = change.registration.or(self.registration.take());
            self.reader = change.reader.or(self.reader.take());
        }
        let waker = self.reader.as_ref().unwrap_or(context.waker());
        let registration = self.registration.as_mut()?;
        Some((Pin::new(&mut **registration), Context::from_waker(waker)))
    }
}

impl Registrations for RegisteredSocket {
    fn begin(&self, polling: Polling) {
        let (reads, has_reactor) = match polling {
            Polling::Writes => (0, true),
            Polling::Reads => (MOST_READS, true),
            Polling::WithoutReactor => (MOST_READS, false),
        };
        self.reads_left.store(reads, Ordering::Relaxed);
        self.has_reactor.store(has_reactor, Ordering::Relaxed);
    }

    fn has_put_off_reads(&self) -> bool {
        self.reads_left.load(Ordering::Relaxed) == 0
    }

    fn register_here(&self) -> io::Result<Registration> {
        Ok(match &self.socket {
            Socket::Tcp(socket) => Box::new(TcpStream::from_std(socket.try_clone()?)?),
            #[cfg(unix)]
            Socket::Unix(socket) => Box::new(UnixStream::from_std(socket.try_clone()?)?),
        })
    }

    fn replace(&self, registration: Registration) {
        let replaced = self.change.lock().registration.replace(registration);
        self.is_changed.store(true, Ordering::SeqCst);
        drop(replaced);
    }

    fn wake(&self, reader: Waker) {
        let replaced = self.change.lock().reader.replace(reader);
        self.is_changed.store(true, Ordering::SeqCst);
        drop(replaced);
    }

    fn has_work(&self) -> bool {
        if self.is_full.load(Ordering::Acquire) {
            return true;
        }
        let peeked = self.socket.all().peek(&mut [MaybeUninit::uninit()]);
        !matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    fn close(&self) {
        // An error means that the connection has ended.
        drop(self.socket.all().shutdown(Shutdown::Both));
    }
}

/// A socket that is not ready wakes no task here: the caller looks again by itself.
fn at_once<T>(result: io::Result<T>) -> Poll<io::Result<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Poll::Pending,
        result => Poll::Ready(result),
    }
}

/// The error of a reactor that is shutting down. It says nothing about the socket: another reader comes.
fn is_of_a_reactor_that_ends(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Other && error.raw_os_error().is_none()
}

impl AsyncRead for SharedSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // What is put off is read when the reader is polled.
        let left = this.shared.reads_left.load(Ordering::Relaxed);
        if left == 0 {
            return Poll::Pending;
        }
        let read = if this.shared.has_reactor.load(Ordering::Relaxed) {
            let Some((stream, mut context)) = this.registered(context) else {
                return Poll::Pending;
            };
            match ready!(stream.poll_read(&mut context, buffer)) {
                Err(error) if is_of_a_reactor_that_ends(&error) => return Poll::Pending,
                read => read,
            }
        } else {
            let free = buffer.initialize_unfilled();
            let read = at_once((&*this.shared.socket.all()).read(free));
            ready!(read).map(|count| buffer.advance(count))
        };
        this.shared.reads_left.store(left - 1, Ordering::Relaxed);
        Poll::Ready(read)
    }
}

impl AsyncWrite for SharedSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // A new registration is not ready before its reactor has run once, which it may never do.
        let this = self.get_mut();
        let written = at_once(match &this.shared.socket {
            Socket::Tcp(socket) => (&*socket).write(bytes),
            #[cfg(unix)]
            Socket::Unix(socket) => (&*socket).write(bytes),
        });
        this.shared
            .is_full
            .store(written.is_pending(), Ordering::Release);
        if written.is_ready() || !this.shared.has_reactor.load(Ordering::Relaxed) {
            return written;
        }
        let Some((stream, mut context)) = this.registered(context) else {
            return Poll::Pending;
        };
        match ready!(stream.poll_write(&mut context, bytes)) {
            Err(error) if is_of_a_reactor_that_ends(&error) => Poll::Pending,
            written => Poll::Ready(written),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The descriptor is closed with the last duplicate. Until then, the peer sees that nothing more is sent.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shared.socket.all().shutdown(Shutdown::Write))
    }
}
