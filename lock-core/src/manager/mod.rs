//! The manager: its state, and the steps that its calls have in common.

use std::{
    fmt,
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

use crate::{
    driver::{context::Context, hold::Hold, reentry, registry::Registry, waiting::WaitFuture},
    engine::{
        terms::{Defaults, Terms},
        transition,
    },
    error::LockError,
    key::LockKey,
    mode::Mode,
    moment::Moment,
    options::{LockOptions, check_key},
    runtime::executor::Executor,
    telemetry,
};

// Rustdoc shows methods in the order of the modules, so the ones that every program calls come first.
pub(crate) mod builder;

pub(crate) mod acquire;

pub(crate) mod run;

pub(crate) mod default_manager;
pub(crate) mod finishing;
pub(crate) mod listing;
mod multi_key;
mod operating;
#[cfg(test)]
mod tests;
#[cfg(feature = "simulation")]
pub(crate) mod waist;
pub(crate) mod wanted_keys;

pub use acquire::AcquireFuture;
pub use builder::LockManagerBuilder;
pub use default_manager::{LockSource, current_lease, set_global, with_locks};

/// How long the drop of the last manager waits for releases.
const LAST_WAIT: Duration = Duration::from_millis(100);

/// Acquires locks on one backend.
///
/// [`connect`](Self::connect) creates one from a url. [`run`](Self::run) runs a body while a lock is held, and drops it
/// when the lease is lost; [`acquire`](Self::acquire) returns a guard.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # use lock_core::{LockError, LockManager, LockOptions};
/// # async fn f() -> Result<(), LockError> {
/// let locks = LockManager::connect("redis://127.0.0.1:6379").await?;
/// let options = LockOptions::new(Duration::from_secs(10)).wait(Duration::from_secs(2));
/// let token = locks.run("order:42", options.clone(), |lease| async move { lease.fencing_token() }).await?;
/// let guard = locks.acquire("order:42", options).await?;
/// guard.release().await
/// # }
/// ```
///
/// # Resources
///
/// Create one manager for a process, and clone it: clones are cheap and share one state. A manager of servers owns one
/// thread with a connection to each server. The thread does everything that must continue while a handler blocks: renewals,
/// clean-ups, reconnecting. Each tokio runtime that acquires locks has one more connection to the server, up to 8 in all.
/// The connections and the thread end after the last clone, guard and clean-up. Dropping the last clone waits for the
/// releases of [`release_in_background`](LockManagerBuilder::release_in_background) and of [shares](LockOptions::shared)
/// that the process keeps, and blocks for at most 100 ms.
///
/// # Forking
///
/// Create the manager **after** a fork, in each child: like a tokio runtime and a connection of the `redis` crate, a
/// manager works only in the process that created it. This is not detected. A child that uses an inherited manager writes
/// to the parent's connections, and may corrupt the parent's locks.
#[doc(alias = "mutex")]
#[doc(alias = "redlock")]
#[derive(Clone)]
pub struct LockManager {
    inner: Arc<ManagerState>,
}

struct ManagerState {
    registry: Arc<Registry>,
    /// The defaults, or the error in the settings if the constructor could not return one.
    defaults: Result<Defaults, LockError>,
}

impl LockManager {
    /// Joins the wait queue of a key.
    fn join_queue(
        &self,
        key: &LockKey,
        terms: Terms,
        deadline: Option<Moment>,
        waker: &Waker,
    ) -> Result<WaitFuture, LockError> {
        let now = self.context().clock.now();
        let wait = WaitFuture::join(&self.inner.registry, key, terms, now, deadline, waker);
        wait.inspect_err(|error| telemetry::refused(key, terms.mode.kind().shown(), error))
    }

    /// Shares the leases of the running task if it holds all of these keys. If it holds none of them, checks that it may
    /// wait for them, and returns `None`.
    fn held_or_checked(&self, keys: &[(LockKey, Mode)]) -> Result<Option<Hold>, LockError> {
        let registry = &self.inner.registry;
        let (mut leases, mut missing) = (Vec::new(), None);
        for (key, mode) in keys {
            match reentry::find(registry, key, *mode)? {
                Some((lease, _)) => leases.push(lease),
                None => missing = missing.or(Some(key)),
            }
        }
        if let Some(missing) = missing
            && !leases.is_empty()
        {
            // Waiting for the rest would break the order of the keys: another task may hold the rest, and wait for those
            // that are held here.
            let refused = LockError::invalid(
                "this task already holds other keys of the list, but not this one: a task that acquires all of them at once \
                could hold this one and wait for those forever. Acquire all of them where the first is acquired",
            );
            return Err(refused.about(missing));
        }
        if missing.is_none()
            && let Some(hold) = Hold::again(registry, leases)
        {
            hold.leases().check()?;
            return Ok(Some(hold));
        }
        self.require_runtime()?;
        for (key, _) in keys {
            self.check_key(key)?;
        }
        Ok(None)
    }

    pub(crate) fn terms(&self, key: &LockKey, options: &LockOptions) -> Result<Terms, LockError> {
        let defaults = self.inner.defaults.clone()?;
        Terms::new(options, defaults).map_err(|error| self.or_closed(error.about(key)))
    }

    /// Returns the error of a refused call. After a shutdown, this is always the error that says so, since nothing else is
    /// worth fixing then.
    fn or_closed(&self, error: LockError) -> LockError {
        match &error {
            LockError::Invalid { key, .. } | LockError::Unavailable { key, .. }
                if self.inner.registry.keys.are_closed() =>
            {
                let about = key.iter();
                about.fold(transition::shut_down(), LockError::about)
            }
            _ => error,
        }
    }

    /// Completes the error of a call: adds another key that the task holds to a busy error, and logs an unavailable
    /// backend. `is_wanted` is called with the busy key and the other key.
    fn refused(
        &self,
        error: LockError,
        is_wanted: impl Fn(&LockKey, &LockKey) -> bool,
    ) -> LockError {
        let registry = &self.inner.registry;
        let also_held =
            |busy: &LockKey| reentry::also_held(registry, |other| is_wanted(busy, other));
        self.context()
            .logged(self.or_closed(error).with_also_held(also_held))
    }

    /// Checks a key before a request is sent for it.
    fn check_key(&self, key: &LockKey) -> Result<(), LockError> {
        telemetry::check_literal(key);
        check_key(&self.inner.registry.prefix, key)
    }

    /// Refuses a call outside of a tokio runtime if the manager has no thread.
    fn require_runtime(&self) -> Result<(), LockError> {
        if matches!(self.context().executor, Executor::Caller)
            && tokio::runtime::Handle::try_current().is_err()
        {
            return Err(LockError::invalid(
                "the in-memory backend runs on the caller's tokio runtime, but there is none: make the call inside one",
            ));
        }
        Ok(())
    }

    fn context(&self) -> &Arc<Context> {
        &self.inner.registry.context
    }
}

impl Drop for ManagerState {
    /// Blocks while releases in the background, or of kept shares, are in flight, because the process may be about to end.
    fn drop(&mut self) {
        let context = &self.registry.context;
        if !context.executor.has_own_thread() {
            return;
        }
        let had_shares = self.registry.close_all_shares();
        if !context.executor.runs_while_caller_blocks() {
            return;
        }
        let until = Instant::now() + LAST_WAIT;
        if had_shares {
            context.in_progress.block_until_emptied(until);
        }
        context.in_background.block_until_emptied(until);
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("backend", &self.context().backend)
            .field("prefix", &self.inner.registry.prefix)
            .finish_non_exhaustive()
    }
}
