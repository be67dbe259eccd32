//! Calls whose results a test knows in advance, so that any other result fails the test; and their options.

use std::{fmt::Debug, panic::Location, time::Duration};

use lock_core::{
    IntoLockKey, Lease, LeaseLost, LockError, LockGuard, LockManager, LockManagerBuilder,
    LockOptions,
    inspect::{Health, Topic},
};
use tokio::{task::JoinHandle, time::timeout};

use crate::{
    server::RedisServer,
    wait::{HANG, SECOND, eventually, eventually_blocking},
};

/// Connects to servers that are running.
#[track_caller]
pub fn connect(url: &str) -> impl Future<Output = LockManager> + Send {
    connected(LockManager::builder(), url)
}

/// Like [`connect`], with this time-out of a reply. With a long one, no request is repeated during a test.
#[track_caller]
pub fn connect_with_time_out(
    command: Duration,
    url: &str,
) -> impl Future<Output = LockManager> + Send {
    connected(LockManager::builder().command_timeout(command), url)
}

#[track_caller]
fn connected(builder: LockManagerBuilder, url: &str) -> impl Future<Output = LockManager> + Send {
    let caller = Location::caller();
    async move {
        let connected = builder.connect(url).await;
        connected.unwrap_or_else(|error| panic!("no connection to {url} ({caller}): {error:?}"))
    }
}

/// Connects with time-outs that a stalled machine may exceed, by as many tries as it takes.
pub async fn connect_in_some_tries(builder: &LockManagerBuilder, url: &str) -> LockManager {
    let connecting = async {
        loop {
            if let Ok(locks) = builder.clone().connect(url).await {
                return locks;
            }
        }
    };
    let connected = timeout(HANG, connecting).await;
    connected.unwrap_or_else(|_| panic!("no connection to {url} within {HANG:?}"))
}

/// Returns options with a ttl of ten seconds, which is longer than most tests hold a lock, and the default wait.
pub fn options() -> LockOptions {
    LockOptions::new(SECOND * 10)
}

/// Returns [`options`] with a wait that no test exhausts.
pub fn patient() -> LockOptions {
    options().wait(HANG)
}

/// The mode in which a lock is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// For one holder at a time.
    Exclusive,
    /// For several holders that share it.
    Shared,
    /// For one holder of each of this many permits.
    Permits(u16),
}

impl Mode {
    /// Sets this mode in options that have the default, which is exclusive.
    pub fn of(self, options: LockOptions) -> LockOptions {
        match self {
            Self::Exclusive => options,
            Self::Shared => options.shared(),
            Self::Permits(permits) => options.permits(permits.into()),
        }
    }
}

/// Acquires locks that are free now or soon.
pub trait AcquireFree {
    /// Acquires the lock, and panics if it does not get it.
    #[track_caller]
    fn acquire_free(
        &self,
        key: impl IntoLockKey,
        options: LockOptions,
    ) -> impl Future<Output = LockGuard> + Send;
}

impl AcquireFree for LockManager {
    #[track_caller]
    fn acquire_free(
        &self,
        key: impl IntoLockKey,
        options: LockOptions,
    ) -> impl Future<Output = LockGuard> + Send {
        let caller = Location::caller();
        let acquired = self.acquire(key, options);
        async move {
            let acquired = acquired.await;
            acquired.unwrap_or_else(|error| panic!("the lock is not free ({caller}): {error:?}"))
        }
    }
}

/// Releases locks that are held.
pub trait ReleaseHeld {
    /// Releases the lock, and panics if it was lost, or if no reply confirms that it is free.
    #[track_caller]
    fn release_held(self) -> impl Future<Output = ()> + Send;
}

impl ReleaseHeld for LockGuard {
    #[track_caller]
    fn release_held(self) -> impl Future<Output = ()> + Send {
        let caller = Location::caller();
        async move {
            let released = self.release().await;
            released.unwrap_or_else(|error| panic!("the lock is not held ({caller}): {error:?}"));
        }
    }
}

/// Asserts that a result is an error of this form, and shows the result if it is not.
#[macro_export]
macro_rules! assert_fails {
    ($result:expr, $error:pat) => {
        assert!(matches!(&$result, Err($error)), "{:?}", $result)
    };
}

/// Asserts that an error is [`LockError::Invalid`], and that its reason has these words.
#[track_caller]
pub fn invalid(error: &LockError, says: &str) {
    match error {
        LockError::Invalid { reason, .. } => assert!(reason.contains(says), "{says}: {reason}"),
        other => panic!("not `Invalid`: {other:?}"),
    }
}

/// Asserts that an error is [`LockError::Unavailable`], and that its source has these words.
#[track_caller]
pub fn unavailable(error: &LockError, says: &str) {
    match error {
        LockError::Unavailable { source, .. } => {
            assert!(source.to_string().contains(says), "{says}: {source}");
        }
        other => panic!("not `Unavailable`: {other:?}"),
    }
}

/// Returns the guard that a waiting task gets, or another value that it returns, and panics if it gets none.
#[track_caller]
pub fn granted<T: Send>(
    waiting: JoinHandle<Result<T, LockError>>,
) -> impl Future<Output = T> + Send {
    let caller = Location::caller();
    async move {
        let waited = timeout(HANG, waiting).await;
        let waited = waited.unwrap_or_else(|_| panic!("no grant arrives ({caller})"));
        let acquired = waited.unwrap_or_else(|error| panic!("the task ended ({caller}): {error}"));
        acquired.unwrap_or_else(|error| panic!("not granted ({caller}): {error:?}"))
    }
}

/// Checks the servers of a manager. The findings are without those about latency, since the machine may be slow.
pub async fn checked(locks: &LockManager) -> Health {
    let mut health = locks.check().await.expect("a reply");
    let warnings = &mut health.warnings;
    warnings.retain(|warning| warning.topic != Topic::Latency);
    health
}

/// Waits until the server has no lock.
#[track_caller]
pub fn nothing_is_left(server: &RedisServer) -> impl Future<Output = ()> {
    eventually(HANG, "no lock is left", async || {
        server.keys("lock:*").is_empty()
    })
}

/// Like [`nothing_is_left`], for a test without a runtime.
pub fn nothing_is_left_blocking(server: &RedisServer) {
    eventually_blocking(HANG, "no lock is left", || server.keys("lock:*").is_empty());
}

/// Returns why a lease was lost, and panics if the result is anything but that loss.
#[track_caller]
pub fn reason_of_loss<T: Debug>(result: Result<T, LockError>) -> LeaseLost {
    match result {
        Err(LockError::Lost { reason, .. }) => reason,
        other => panic!("not lost: {other:?}"),
    }
}

/// Returns why a request is invalid, and panics if the result is anything but that refusal.
#[track_caller]
pub fn reason_of_refusal<T: Debug>(result: Result<T, LockError>) -> String {
    match result {
        Err(LockError::Invalid { reason, .. }) => reason.to_string(),
        other => panic!("not `Invalid`: {other:?}"),
    }
}

/// Takes a lock this many times in a row, without a wait and with each release in the background.
///
/// No other process may want the lock, so only the release before it can make it busy. Panics if one does, or if a fencing token
/// does not grow.
#[track_caller]
pub fn run_in_a_row(
    locks: &LockManager,
    key: &str,
    times: usize,
) -> impl Future<Output = ()> + Send {
    let caller = Location::caller();
    async move {
        let mut last = None;
        for round in 0..times {
            let options = options().no_wait().release_in_background();
            let body = |lease: Lease| async move { Some(lease.fencing_token()) };
            let next = locks.run(key, options, body).await;
            let next = next.unwrap_or_else(|error| panic!("round {round} ({caller}): {error:?}"));
            assert!(next > last, "{next:?} after {last:?} ({caller})");
            last = next;
        }
    }
}
