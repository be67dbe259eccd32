//! The end of a service, which all services among the examples share.

use std::{sync::OnceLock, time::Duration};

use lock_core::LockManager;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// How long requests under way may take after the signal.
const GRACE: Duration = Duration::from_secs(5);

/// Waits for the signal to end: Kubernetes and systemd send `SIGTERM`, a terminal sends `SIGINT` at ctrl-c.
///
/// From the first call on, neither signal ends the process by itself. A service makes that call before it prints its address, so
/// that no signal comes earlier. All calls report the same signal, also those that come after it.
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
            .expect("the listening task ends after it has told");
    }
}

fn listen() -> watch::Receiver<bool> {
    let signal = |kind| signal(kind).expect("a runtime that listens for signals");
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

/// Waits for the signal to end, and then shuts the manager down, beside the server: it grants no new lock from here on.
/// A handler that is still under way after five seconds loses its lock and ends with an error.
pub fn shut_down_on_signal(locks: LockManager) -> impl Future<Output = ()> + Send + 'static {
    let signalled = shutdown_signal();
    async move {
        signalled.await;
        locks.shutdown(GRACE).await;
    }
}
