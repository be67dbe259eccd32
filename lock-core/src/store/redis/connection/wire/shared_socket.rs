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
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
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

use crate::{runtime::mutex::Mutex, store::redis::connection::wire::Stream};

/// How many reads one poll of a driver may make. A task of the user must not work for a fast server for ever.
const MOST_READS: u32 = 32;

/// What a poll of the driver may do with the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Polling {
    /// Write only. A task of a user that has read would wake other tasks on its worker, and might then block that worker.
    Writes,
    Reads,
    /// Read and write, and leave the reactor alone, which may not run.
    WithoutReactor,
}

#[derive(Debug)]
enum Socket {
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

    /// Whether a read was put off since then. The driver must be polled again soon.
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
    /// A [`Polling`], written by the thread that polls the driver.
    polling: AtomicU8,
    /// How often something was read since then.
    reads: AtomicU32,
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
    pub(crate) fn tcp(stream: TcpStream) -> io::Result<Self> {
        Ok(Self::new(Socket::Tcp(stream.into_std()?)))
    }

    #[cfg(unix)]
    pub(crate) fn unix(stream: UnixStream) -> io::Result<Self> {
        Ok(Self::new(Socket::Unix(stream.into_std()?)))
    }

    fn new(socket: Socket) -> Self {
        Self {
            shared: Arc::new(RegisteredSocket {
                socket,
                is_full: AtomicBool::new(false),
                polling: AtomicU8::new(Polling::Reads as u8),
                reads: AtomicU32::new(0),
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

    /// Polls the current registration, which then wakes the reader. `None`: there is none, or its reactor ends, which says nothing
    /// about the socket.
    fn poll_registration<T>(
        &mut self,
        context: &Context<'_>,
        poll: impl FnOnce(Pin<&mut dyn Stream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.shared.is_changed.load(Ordering::SeqCst) {
            // Before the change is taken: one that comes meanwhile is looked at once more.
            self.shared.is_changed.store(false, Ordering::SeqCst);
            let change = std::mem::take(&mut *self.shared.change.lock());
            self.registration = change.registration.or(self.registration.take());
            self.reader = change.reader.or(self.reader.take());
        }
        let Some(registration) = &mut self.registration else {
            return Poll::Pending;
        };
        let waker = self.reader.as_ref().unwrap_or(context.waker());
        let mut context = Context::from_waker(waker);
        match ready!(poll(Pin::new(&mut **registration), &mut context)) {
            Err(error) if is_of_a_reactor_that_ends(&error) => Poll::Pending,
            polled => Poll::Ready(polled),
        }
    }
}

impl Registrations for RegisteredSocket {
    fn begin(&self, polling: Polling) {
        self.polling.store(polling as u8, Ordering::Relaxed);
        self.reads.store(0, Ordering::Relaxed);
    }

    fn has_put_off_reads(&self) -> bool {
        self.reads.load(Ordering::Relaxed) >= MOST_READS
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

impl RegisteredSocket {
    /// How the driver is polled now. Called by the thread that does.
    fn is(&self, polling: Polling) -> bool {
        self.polling.load(Ordering::Relaxed) == polling as u8
    }

    fn read(&self, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let free = buffer.initialize_unfilled();
        let read = match &self.socket {
            Socket::Tcp(socket) => (&*socket).read(free),
            #[cfg(unix)]
            Socket::Unix(socket) => (&*socket).read(free),
        };
        at_once(read).map_ok(|count| buffer.advance(count))
    }

    fn write(&self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        at_once(match &self.socket {
            Socket::Tcp(socket) => (&*socket).write(bytes),
            #[cfg(unix)]
            Socket::Unix(socket) => (&*socket).write(bytes),
        })
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
        if this.shared.is(Polling::Writes) || this.shared.has_put_off_reads() {
            return Poll::Pending;
        }
        let read = ready!(if this.shared.is(Polling::WithoutReactor) {
            this.shared.read(buffer)
        } else {
            this.poll_registration(context, |stream, context| stream.poll_read(context, buffer))
        });
        this.shared.reads.fetch_add(1, Ordering::Relaxed);
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
        let written = this.shared.write(bytes);
        this.shared
            .is_full
            .store(written.is_pending(), Ordering::Release);
        if written.is_ready() || this.shared.is(Polling::WithoutReactor) {
            return written;
        }
        this.poll_registration(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The descriptor is closed with the last duplicate. Until then, the peer sees that nothing more is sent.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shared.socket.all().shutdown(Shutdown::Write))
    }
}
