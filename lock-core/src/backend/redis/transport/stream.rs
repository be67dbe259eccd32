//! The stream to a server: made with the options that a lock needs, watched, and bounded in what it takes from the server.

use std::{
    future::Future,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

#[cfg(unix)]
use redis::ConnectionAddr;
use socket2::{SockRef, TcpKeepalive};
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    task::yield_now,
};

use crate::backend::redis::transport::{
    address::Address,
    byte_stream::Stream,
    shared_socket::{Registrations, SharedSocket, Socket},
    traffic::{NoReply, Traffic},
};
#[cfg(feature = "tls")]
use crate::backend::redis::transport::{address::security::Transport, tls};

/// A stream, and its socket if several runtimes are to read that.
type Connected = (Box<dyn Stream>, Option<Arc<dyn Registrations>>);

/// Connects. A host name is resolved each time. `is_shared`: several runtimes are to read the socket.
pub(crate) async fn connect(
    address: &Address,
    command_timeout: Duration,
    is_shared: bool,
) -> io::Result<Connected> {
    #[cfg(unix)]
    if let ConnectionAddr::Unix(path) = address.addr() {
        let stream = UnixStream::connect(path).await?;
        return if is_shared {
            shared(Socket::Unix(stream.into_std()?))
        } else {
            Ok((Box::new(stream), None))
        };
    }
    let no_place = "there are no unix sockets on this system";
    let (host, port) =
        (address.place()).ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, no_place))?;
    #[cfg(feature = "simulation")]
    if let Some(connecting) = crate::runtime::simulation::ask(|world| world.connect(host, port)) {
        return Ok((Box::new(connecting.await?), None));
    }
    let stream = TcpStream::connect((host, port)).await?;
    set_up(&stream, command_timeout)?;
    let (stream, registrations): Connected = if is_shared {
        shared(Socket::Tcp(stream.into_std()?))?
    } else {
        (Box::new(stream), None)
    };
    #[cfg(feature = "tls")]
    if let Transport::Tls(trust) = &address.transport {
        let secured = tls::shake_hands(stream, trust, host).await?;
        return Ok((Box::new(secured), registrations));
    }
    Ok((stream, registrations))
}

fn shared(socket: Socket) -> io::Result<Connected> {
    let socket = SharedSocket::new(socket);
    let registrations = socket.registrations();
    // For the handshakes.
    registrations.replace(registrations.register_here()?);
    Ok((Box::new(socket), Some(registrations)))
}

/// Switches Nagle's delay off, since each command is one small write. The kernel also notices a dead peer: on an idle connection by
/// keepalive, with bytes in flight by the user time-out.
fn set_up(stream: &TcpStream, command_timeout: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(15)))?;
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    socket.set_tcp_user_timeout(Some(command_timeout * 2))?;
    #[cfg(not(any(target_os = "android", target_os = "fuchsia", target_os = "linux")))]
    let _unused = command_timeout;
    Ok(())
}

/// How many reads may follow each other before there is a turn for writes. The driver reads all there is before it writes. A server
/// that sends without end would keep renewals from leaving. More than a shared socket makes, and less than tokio's budget of a task,
/// of which writes and timers have a part.
const MOST_READS_IN_A_ROW: u32 = 64;

/// A stream that notes when bytes last came and why it ended, and ends if too many come.
pub(crate) struct Watched {
    stream: Box<dyn Stream>,
    reads_in_a_row: u32,
    traffic: Arc<Traffic>,
}

impl Watched {
    pub(crate) fn new(stream: Box<dyn Stream>, traffic: Arc<Traffic>) -> Self {
        Self {
            stream,
            reads_in_a_row: 0,
            traffic,
        }
    }

    fn failed(&self, error: io::Error) -> io::Error {
        #[cfg(feature = "tls")]
        let error = tls::explained(error);
        self.traffic.end(NoReply::of(&error));
        error
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.reads_in_a_row == MOST_READS_IN_A_ROW {
            self.reads_in_a_row = 0;
            // The runtime looks at its timers first. It does so only once in 61 turns of tasks that wake themselves.
            return pin!(yield_now()).poll(context).map(Ok);
        }
        let before = buffer.filled().len();
        let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buffer) else {
            self.reads_in_a_row = 0;
            return Poll::Pending;
        };
        self.reads_in_a_row += 1;
        let count = buffer.filled().len() - before;
        let taken = match read {
            Ok(()) if count == 0 => {
                let why = "the server closed the connection";
                self.traffic.end(NoReply::Broken(why.into()));
                Ok(())
            }
            Ok(()) => self.traffic.note_received(count),
            Err(error) => Err(error),
        };
        Poll::Ready(taken.map_err(|error| self.failed(error)))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        Poll::Ready(written.map_err(|error| self.failed(error)))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        sync::atomic::{AtomicBool, Ordering},
        task::{Wake, Waker},
    };

    use super::*;

    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn endless() -> Watched {
        let endless = tokio::io::join(tokio::io::repeat(b'+'), tokio::io::sink());
        Watched::new(Box::new(endless), Arc::default())
    }

    /// Reads until the stream puts a read off, as a driver does. Returns how often.
    fn turn(stream: &mut Watched, context: &mut Context<'_>) -> usize {
        let mut read = |_: &i32| {
            let mut bytes = [0; 8];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = Pin::new(&mut *stream).poll_read(context, &mut buffer);
            read.is_ready()
        };
        (0..1_000).take_while(|number| read(number)).count()
    }

    #[test]
    fn a_stream_that_always_has_something_leaves_a_turn_for_writes() {
        let mut stream = endless();
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        for _ in 0..3 {
            assert_eq!(turn(&mut stream, &mut context), 64);
            assert!(woken.0.swap(false, Ordering::SeqCst), "soon the rest");
        }
    }

    #[tokio::test]
    async fn a_stream_that_always_has_something_leaves_timers_a_turn() {
        let (mut stream, mut turns) = (endless(), 0);
        let reads = tokio::spawn(poll_fn(move |context| {
            turns += 1;
            assert!(turns < 20, "the timer is over since the second one");
            std::thread::sleep(Duration::from_millis(2));
            turn(&mut stream, context);
            Poll::<()>::Pending
        }));
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(!reads.is_finished(), "too many turns");
    }
}
