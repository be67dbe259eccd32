//! A separate runtime for servers and proxies that must continue while the test's runtime is stalled, paused or gone.

use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
};

use crate::port::listen;

/// One thread with a tokio runtime; its tasks end when it is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    // `None` only while it is being dropped.
    runtime: Option<Runtime>,
}

impl Background {
    /// Serves each connection to a free port in a task of its own. Returns the port, too.
    pub(crate) fn serve<T>(
        name: &str,
        serve: impl Fn(TcpStream) -> T + Send + 'static,
    ) -> (Self, u16)
    where
        T: Future<Output = ()> + Send + 'static,
    {
        let (listener, port) = listen();
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(name)
            .enable_all()
            .build()
            .expect("one more thread");
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("a runtime with I/O");
            loop {
                let (client, _) = listener.accept().await.expect("a listening socket");
                tokio::spawn(serve(client));
            }
        });
        let runtime = Some(runtime);
        (Self { runtime }, port)
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
