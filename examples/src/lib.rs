//! Graceful shutdown, shared by all examples that are services.

use std::{sync::OnceLock, time::Duration};

use lock_core::LockManager;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// How long requests in flight may take after the signal.
const GRACE: Duration = Duration::from_secs(5);

/// Waits for a shutdown signal: Kubernetes and systemd send `SIGTERM`, a terminal sends `SIGINT` at ctrl-c.
///
/// From the first call on, neither signal ends the process by itself. A service makes that call before it prints its address, so
/// that no signal arrives earlier. All calls report the same signal, even calls made after it arrived.
///
/// # Panics
///
/// Outside a runtime of tokio.
pub fn shutdown_signal() -> impl Future<Output = ()> + Send + 'static {
    static SIGNALLED: OnceLock<watch::Receiver<bool>> = OnceLock::new();
    let mut signalled = SIGNALLED.get_or_init(listen).clone();
    async move {
        signalled
            .wait_for(|signalled| *signalled)
            .await
            .expect("the listening task sends the signal before it ends");
    }
}

fn listen() -> watch::Receiver<bool> {
    let signal = |kind| signal(kind).expect("the runtime can listen for signals");
    let mut terminate = signal(SignalKind::terminate());
    let mut interrupt = signal(SignalKind::interrupt());
    let (sender, signalled) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        sender.send_replace(true);
    });
    signalled
}

/// Waits for a shutdown signal, and then shuts the manager down while the server does the same: no further lock is granted.
/// A handler that is still running after five seconds loses its lock and ends with an error.
pub fn shut_down_on_signal(locks: LockManager) -> impl Future<Output = ()> + Send + 'static {
    let signalled = shutdown_signal();
    async move {
        signalled.await;
        locks.shutdown(GRACE).await;
    }
}
