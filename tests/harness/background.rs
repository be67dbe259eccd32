//! A separate runtime for tasks that must continue while the test's runtime is stalled, paused or gone.

use tokio::runtime::{Builder, Handle, Runtime};

/// One thread with a tokio runtime; its tasks end when it is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    // `None` only while it is being dropped.
    runtime: Option<Runtime>,
}

impl Background {
    pub(crate) fn start(name: &str) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(name)
            .enable_all()
            .build()
            .expect("one more thread");
        Self {
            runtime: Some(runtime),
        }
    }

    pub(crate) fn handle(&self) -> &Handle {
        let runtime = self.runtime.as_ref().expect("taken only by drop");
        runtime.handle()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // A plain drop waits for the thread, and panics where a test drops its server in async code.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
