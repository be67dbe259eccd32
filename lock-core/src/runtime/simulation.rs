//! The points at which the process can be simulated: time, tasks, the network and random numbers can come from a simulated world.
//!
//! A world belongs to a thread. On a thread that is in none, every one of them behaves as without this feature. In a world, a
//! manager depends on nothing but the world, so whatever happens there happens again in the same order.

use std::{
    cell::RefCell,
    fmt, future, io,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::io::AsyncRead;

use crate::runtime::Work;

/// A connection that is being made.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<Ends>> + Send>>;

/// What a manager can notice of the machine that it runs on.
pub trait World {
    /// The time since boot of the machine that the running task is on.
    fn since_boot(&self) -> Duration;

    /// The time since the Unix epoch, as that machine's wall clock has it.
    fn wall_clock(&self) -> Duration;

    /// A number that looks random, the same in each run.
    fn random(&self) -> u64;

    /// The host and process that the running task is in, for people.
    fn label(&self) -> String;

    /// Starts a thread of the running task's process, with a runtime of its own.
    fn start_thread(&self) -> Arc<dyn Thread>;

    /// Starts a task beside the one that runs, on the same thread.
    fn spawn(&self, work: Work);

    /// Connects the running task's process to a server.
    fn connect(&self, host: &str, port: u16) -> Connecting;
}

/// A simulated thread. It ends, and its tasks with it, when this is dropped.
pub trait Thread: fmt::Debug + Send + Sync {
    /// Starts a task there; callable from anywhere in its process.
    fn spawn(&self, work: Work);
}

/// A connection to a simulated server.
pub struct Ends {
    /// What comes from the server.
    pub reading: Box<dyn AsyncRead + Send + Unpin>,
    /// What goes to it. The connection is closed when both are dropped.
    pub writing: Arc<dyn Wire>,
}

impl fmt::Debug for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.writing.fmt(f)
    }
}

/// The half of a connection that is written to.
pub trait Wire: fmt::Debug + Send + Sync {
    /// Writes what is taken at once.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if nothing is taken for now; others if the connection is over.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Ready when something may be taken.
    ///
    /// # Errors
    ///
    /// If the connection is over.
    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
}

thread_local! {
    static WORLD: RefCell<Option<Rc<dyn World>>> = const { RefCell::new(None) };
}

/// Shows that this thread is in a world; it leaves the world when this is dropped.
#[must_use = "the thread leaves the world when this is dropped"]
#[derive(Debug)]
pub struct Entered(());

/// Has the current thread be in a world.
///
/// # Panics
///
/// If it is in one already.
pub fn enter(world: Rc<dyn World>) -> Entered {
    let before = WORLD.replace(Some(world));
    assert!(before.is_none(), "this thread is in a world already");
    Entered(())
}

impl Drop for Entered {
    fn drop(&mut self) {
        drop(WORLD.take());
    }
}

/// Asks the world of this thread, if it is in one.
pub(crate) fn ask<T>(question: impl FnOnce(&dyn World) -> T) -> Option<T> {
    // Also called while the thread ends, when its thread-local values are gone: then it is in no world.
    let world = WORLD.try_with(|world| world.borrow().clone()).ok()??;
    Some(question(&*world))
}

/// Waits until something may be written.
pub(crate) async fn writable(wire: &dyn Wire) -> io::Result<()> {
    future::poll_fn(|context| wire.poll_writable(context)).await
}
