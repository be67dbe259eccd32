//! Running a body once, for all callers.
//!
//! Callers of such a body have a state of their own in the process. No lease is passed on there, since only the server knows whether
//! there is a result. Rejected: one wait queue for them and for callers of a plain lock. A repeat would wait for the lock then, and a
//! lease could pass it by. After a failure, a hand-off to the next caller takes a message instead.

use std::future::{Future, poll_fn};

use crate::{
    backend::RunResult,
    driver::{hold::Admission, reentry::Turns},
    engine::terms::Terms,
    error::{LockError, Repeat},
    guard::LockGuard,
    key::{IntoLockKey, LockKey},
    lease::Lease,
    manager::{
        LockManager,
        acquire::AcquireFuture,
        finishing::{finished, runtime},
        run::Finished,
    },
    once::{
        Keeping, Kept, LARGEST, OnceOptions, Remember, Remembered, Remembering,
        outcome::OnceOutcome,
    },
};

impl LockManager {
    /// Runs a body once, and gives its result to every caller with this key, in every process, for as long as the options keep it.
    ///
    /// The first caller runs the body under the lock of the key, as [`run`](Self::run) does. Callers that come meanwhile wait for its
    /// result, and do not run. Later callers get the result in one round trip. Only a success is kept: `Ok`, or a response with a
    /// status below 400. After a failure, the next caller runs.
    ///
    /// The `ttl` says how long a crash blocks the others, and `keep` how long a repeat is answered. A result takes up to 64 KiB.
    /// After a larger one, a repeat gets [`LockError::Repeated`], and does not run. The lock excludes other locks of the same key.
    ///
    /// # Not exactly once
    ///
    /// A body can run twice. This happens after a crash behind its side effect, and if a process sleeps through its lease. It happens if
    /// the server has no memory for the result, and after a fail-over, a loss of data or an eviction. For effects in one database, store the key of the
    /// request in that database, in the same transaction.
    ///
    /// The caller that ran the body gets its value also if the result could not be kept. A warning is logged then.
    ///
    /// # Errors
    ///
    /// - [`LockError::Busy`] if the body ran elsewhere for longer than this caller waits;
    /// - [`LockError::Repeated`] if the result is of a request with another fingerprint, or its value was not kept;
    /// - [`LockError::Lost`] if the lease was lost while the body ran. The body was dropped, and the next caller runs it;
    /// - [`LockError::Unavailable`] if the server did not reply: the body does not run without the lock;
    /// - [`LockError::Invalid`] if the task holds the key already, if the kept value is of another type, with Redlock, and where no
    ///   scripts may run.
    ///
    /// # Panics
    ///
    /// Only if the body does. The next caller runs it then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future while it waits leaves the queue. Dropping it while the body runs drops the body and then releases the
    /// lock, and the next caller runs. The attribute `#[run_once]` lets the body go on instead.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use lock_core::{LockManager, OnceOptions};
    /// # let manager = LockManager::in_memory();
    /// # async fn charge() -> Result<String, std::io::Error> { Ok("receipt".to_owned()) }
    /// let options = OnceOptions::keep(Duration::from_secs(24 * 60 * 60));
    /// let receipt = manager
    ///     .run_once("charge:7:f3a1", options, |_lease| async { charge().await })
    ///     .await??;
    /// # assert_eq!(receipt, "receipt");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_once<T, F, Fut>(
        &self,
        key: impl IntoLockKey,
        options: OnceOptions,
        body: F,
    ) -> Result<T, LockError>
    where
        T: Remember,
        F: FnOnce(Lease) -> Fut,
        Fut: Future<Output = T>,
    {
        let (by, key) = (Remembering::NEW, key.into_lock_key());
        match self.begin_once(&by, key, &options).await? {
            OnceCall::Done(value) => Ok(value),
            OnceCall::Runs(run) => run.run(&by, body).await,
        }
    }

    /// `run_once`, with a body that goes on when the caller is dropped.
    pub(super) async fn finish_once<F: Future<Output: Send + 'static> + Send + 'static>(
        &self,
        by: Remembering<F::Output>,
        key: LockKey,
        options: &OnceOptions,
        body: impl FnOnce(Lease) -> F + Send + 'static,
    ) -> Result<F::Output, LockError> {
        let runtime = runtime()?;
        match self.begin_once(&by, key, options).await? {
            OnceCall::Done(value) => Ok(value),
            OnceCall::Runs(run) => {
                finished(&runtime, async move { run.run(&by, body).await }).await
            }
        }
    }

    /// Waits until this caller is the one that runs the body, or until there is a result.
    pub(super) async fn begin_once<T>(
        &self,
        by: &Remembering<T>,
        key: LockKey,
        options: &OnceOptions,
    ) -> Result<OnceCall<T>, LockError> {
        let keeping = options.check().map_err(|error| error.about(&key))?;
        let terms = self.terms(&key, &options.lock)?;
        let mut acquire = AcquireFuture::new(self, key.clone(), Ok(terms));
        match poll_fn(|context| acquire.poll_admission(context)).await? {
            Admission::Held(hold) => Ok(OnceCall::Runs(OnceRun {
                manager: self.clone(),
                guard: LockGuard::new(hold),
                terms,
                keeping,
            })),
            Admission::Done(bytes) => {
                let recalled = recalled(by, &key, &keeping, &bytes);
                let outcome = match recalled {
                    Ok(_) => OnceOutcome::Replayed,
                    Err(_) => OnceOutcome::Refused,
                };
                outcome.report(&key);
                recalled.map(OnceCall::Done)
            }
        }
    }
}

/// What a call came to: whether it runs the body.
pub(super) enum OnceCall<T> {
    /// It runs the body.
    Runs(OnceRun),
    /// The body has run: its value.
    Done(T),
}

/// A call that runs the body, and holds the lock.
pub(super) struct OnceRun {
    manager: LockManager,
    guard: LockGuard,
    terms: Terms,
    keeping: Keeping,
}

impl OnceRun {
    /// Runs the body, and leaves its result to the other callers. Dropping the future drops the body, and then releases the lock.
    pub(super) async fn run<T, F: Future<Output = T>>(
        self,
        by: &Remembering<T>,
        body: impl FnOnce(Lease) -> F,
    ) -> Result<T, LockError> {
        let mut held = None;
        let keep_guard = |value, lock: Finished<'_>| {
            held = Some(lock.guard);
            (value, None)
        };
        let manager = self.manager;
        let value = manager
            .run_under(self.guard, Turns::default(), self.terms, body, keep_guard)
            .await?;
        // No await stands between the end of the body and the release: a drop of this future cannot come between the two.
        let (value, remembered) = (by.remember)(value);
        if let Some(guard) = held {
            let result = result_of(&remembered, &self.keeping);
            release_with(guard, result).await;
        }
        Ok(value)
    }
}

/// The bytes to store; nothing after a failure.
fn result_of(remembered: &Remembered, keeping: &Keeping) -> Option<RunResult> {
    let value = match remembered {
        Remembered::Nothing => return None,
        Remembered::Bytes(bytes) if bytes.len() <= LARGEST => Some(&**bytes),
        Remembered::Bytes(_) | Remembered::Success => None,
    };
    let kept = Kept {
        fingerprint: keeping.fingerprint,
        value,
    };
    Some(RunResult {
        bytes: kept.bytes().into(),
        keep: keeping.keep,
    })
}

/// Releases the lock of a body that has ended. The caller gets the value of the body, whatever comes of its result: hiding a success
/// would make the client repeat it.
async fn release_with(guard: LockGuard, result: Option<RunResult>) {
    let (key, is_kept) = (guard.key().clone(), result.is_some());
    let outcome = match guard.release_with(result).await {
        Ok(()) => OnceOutcome::Ran,
        Err(error) if is_kept => {
            tracing::warn!(key = %key.shown(), %error, "the body has run, but its result is not kept: a repeat may run it again");
            OnceOutcome::NotStored
        }
        Err(error) => {
            tracing::warn!(key = %key.shown(), %error, "the body ended, but the release of its lock failed");
            OnceOutcome::Ran
        }
    };
    outcome.report(&key);
}

/// The value that an earlier run left.
fn recalled<T>(
    by: &Remembering<T>,
    key: &LockKey,
    keeping: &Keeping,
    bytes: &[u8],
) -> Result<T, LockError> {
    let unreadable = |why: String| {
        LockError::invalid(format!(
            "its result does not read: {why}. If the type of the value has changed, use another key, or delete the result by `forget`"
        ))
        .about(key)
    };
    let repeated = |reason| LockError::Repeated {
        key: key.clone(),
        reason,
    };
    let kept =
        Kept::read(bytes).ok_or_else(|| unreadable("it is of another version".to_owned()))?;
    if let (Some(theirs), Some(ours)) = (kept.fingerprint, keeping.fingerprint)
        && theirs != ours
    {
        return Err(repeated(Repeat::OtherRequest));
    }
    let value = kept.value.ok_or_else(|| repeated(Repeat::NotKept))?;
    (by.recall)(value).map_err(|error| unreadable(error.to_string()))
}
