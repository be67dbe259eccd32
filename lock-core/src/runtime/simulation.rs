//! The hooks of the simulation, through which time, tasks, the network and random numbers come from a simulated world.
//!
//! A world belongs to a thread. On a thread outside of any world, the hooks have no effect. In a world, a manager depends
//! on nothing but the world, so each run has the same events in the same order.

use std::{cell::RefCell, fmt, io, pin::Pin, rc::Rc, sync::Arc, time::Duration};

use tokio::io::{AsyncRead, AsyncWrite};

use crate::runtime::Work;

/// A connection that is being opened.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn SimulatedStream>>> + Send>>;

/// A connection to a simulated server. Dropping it closes the connection.
pub trait SimulatedStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> SimulatedStream for S {}

/// Everything that a manager can observe of its machine.
pub trait World {
    /// Returns the time since boot of the running task's machine.
    fn since_boot(&self) -> Duration;

    /// Returns the time since the Unix epoch, by the wall clock of that machine.
    fn wall_clock(&self) -> Duration;

    /// Returns a pseudo-random number, which is the same in each run.
    fn random(&self) -> u64;

    /// Returns the host and process of the running task, to be shown in the log.
    fn label(&self) -> String;

    /// Starts a thread of the running task's process, with its own runtime.
    fn start_thread(&self) -> Arc<dyn Thread>;

    /// Starts a task on the same thread as the running one.
    fn spawn(&self, work: Work);

    /// Connects the running task's process to a server.
    fn connect(&self, host: &str, port: u16) -> Connecting;
}

/// A simulated thread. When this value is dropped, the thread and its tasks end.
pub trait Thread: fmt::Debug + Send + Sync {
    /// Starts a task on the thread. May be called from anywhere in the thread's process.
    fn spawn(&self, work: Work);
}

thread_local! {
    static WORLD: RefCell<Option<Rc<dyn World>>> = const { RefCell::new(None) };
}

/// Proves that this thread is in a world. The thread leaves the world when this value is dropped.
#[must_use = "the thread leaves the world when this is dropped"]
#[derive(Debug)]
pub struct Entered(());

/// Puts the current thread into a world.
///
/// # Panics
///
/// Panics if the thread is already in a world.
pub fn enter(world: Rc<dyn World>) -> Entered {
    let before = WORLD.replace(Some(world));
    assert!(before.is_none(), "this thread is already in a world");
    Entered(())
}

impl Drop for Entered {
    fn drop(&mut self) {
        drop(WORLD.take());
    }
}

/// Asks the world of this thread, if it is in one.
pub(crate) fn ask<T>(question: impl FnOnce(&dyn World) -> T) -> Option<T> {
    // While the thread ends, its thread-local values are gone, and it is not in a world any more.
    let world = WORLD.try_with(|world| world.borrow().clone()).ok()??;
    Some(question(&*world))
}
