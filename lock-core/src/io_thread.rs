//! The thread of a manager: connections, renewals, clean-ups and timers live here, apart from the user's runtime.
//!
//! A handler that blocks its thread stalls every timer of the runtime it runs on, and a runtime that ends (one
//! `#[tokio::test]`, one worker of actix) takes its tasks with it. Neither may cost a lease, nor leave a lock behind.

use std::{future::Future, io, sync::mpsc};

use tokio::{runtime, sync::oneshot};

#[derive(Debug)]
pub(crate) struct IoThread {
    runtime: runtime::Handle,
    /// Dropped with the last handle, which ends the thread. Work that still runs holds a handle, so that a clean-up is
    /// never cut short.
    _alive: oneshot::Sender<()>,
}

impl IoThread {
    pub(crate) fn start() -> io::Result<Self> {
        let (alive, ended) = oneshot::channel::<()>();
        let (built, result) = mpsc::sync_channel(1);
        // The runtime is made and dropped on its own thread: tokio forbids dropping one inside a runtime.
        std::thread::Builder::new()
            .name("lock-core-io".to_owned())
            .spawn(
                move || match runtime::Builder::new_current_thread().enable_all().build() {
                    Ok(runtime) => {
                        let told = built.send(Ok(runtime.handle().clone()));
                        if told.is_ok() {
                            // Ends when the sender is dropped; nothing is ever sent.
                            drop(runtime.block_on(ended));
                        }
                    }
                    // Nobody listens only if the caller is gone, who needs no answer then.
                    Err(error) => drop(built.send(Err(error))),
                },
            )?;
        let runtime = result
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the I/O thread ended at its start")))?;
        Ok(Self {
            runtime,
            _alive: alive,
        })
    }

    /// Starts `work` on the thread; callable from anywhere, inside a runtime or not.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(work));
    }
}
