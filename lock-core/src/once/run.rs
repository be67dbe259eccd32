//! The run of a body on behalf of all callers.
//!
//! Within a process, the callers of such a body have a state machine of their own, apart from the plain lock of the key. It
//! never hands a lease over locally, since only the server knows whether there is a result. After a failure, the next
//! caller therefore needs a message. Rejected: one wait queue for these callers and those of the plain lock, because a
//! repeat would wait for the lock although there is a result, and leases could be handed over past it.

use std::future::Future;

use crate::{
    backend::RunResult,
    error::{LockError, Repeat},
    key::{IntoLockKey, LockKey},
    lease::Lease,
    manager::{
        LockManager,
        run::{Storing, release_now},
        wanted_keys::WantedKeys,
    },
    once::{Keeping, Kept, LARGEST, OnceOptions, Remember, Remembered, Remembering},
    telemetry,
};

impl LockManager {
    /// Runs a body once, and gives its result to every caller with this key, in every process, for as long as the options
    /// keep it.
    ///
    /// The first caller runs the body under the lock of the key, as [`run`](Self::run) does. Callers that arrive in the
    /// meantime wait for its result instead of running the body. Later callers get the result in one round trip. Only a
    /// success is stored: `Ok`, or a response with a status below 400. After a failure, the next caller runs the body.
    ///
    /// The `ttl` determines how long a crash blocks the others, and `keep` how long repeats get the result. A result has at
    /// most 64 KiB. If it is larger, a repeat gets [`LockError::Repeated`], and the body does not run again. While the body
    /// runs, other locks of the key are excluded, too.
    ///
    /// # Not exactly once
    ///
    /// A body can run twice: after a crash that follows its side effect, if a process is paused beyond the end of its
    /// lease, if the server has no memory for the result, and after a fail-over, a loss of data or an eviction. If the side
    /// effects are in a single database, store the key of the request in that database, in the same transaction.
    ///
    /// The caller that ran the body gets its value even if the result could not be stored. A warning is logged in that
    /// case.
    ///
    /// # Errors
    ///
    /// - [`LockError::Busy`] if another caller runs the body for longer than this caller waits;
    /// - [`LockError::Repeated`] if the result belongs to a request with a different fingerprint, or was not stored;
    /// - [`LockError::Lost`] if the lease was lost while the body ran. The body was dropped, and the next caller runs it;
    /// - [`LockError::Unavailable`] if the server did not reply. The body does not run without the lock;
    /// - [`LockError::Invalid`] if the task already holds the key, if the stored value is of another type, or if the
    ///   manager uses Redlock or a server that may not run scripts.
    ///
    /// # Panics
    ///
    /// Panics only if the body does. The next caller then runs it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future during the wait leaves the queue. Dropping it while the body runs drops the body and then
    /// releases the lock, and the next caller runs the body. With the attribute `#[run_once]`, the body continues instead.
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
    #[doc(alias = "idempotency")]
    #[doc(alias = "single flight")]
    #[doc(alias = "memoize")]
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
        let (wanted, keeping) = self.wanted_run(key.into_lock_key(), &options)?;
        let store = (Remembering::NEW, keeping);
        self.run_wanted(wanted, body, store, release_now).await
    }

    /// Checks a call for a body that runs once.
    pub(super) fn wanted_run(
        &self,
        key: LockKey,
        options: &OnceOptions,
    ) -> Result<(WantedKeys, Keeping), LockError> {
        let keeping = options.check(&key)?;
        Ok((self.wanted(key, &options.lock)?, keeping))
    }
}

impl<T> Storing<T> for (Remembering<T>, Keeping) {
    fn recall(&self, result: &[u8]) -> Result<T, LockError> {
        let (by, keeping) = self;
        let recalled = recalled(by, keeping, result);
        let outcome = if recalled.is_ok() {
            "replayed"
        } else {
            "refused"
        };
        count(&keeping.key, outcome);
        recalled
    }

    fn result_of(&self, value: T) -> (T, Option<RunResult>) {
        let (by, keeping) = self;
        let (value, remembered) = (by.remember)(value);
        let stored = match &remembered {
            // After a failure, the next caller runs the body.
            Remembered::Nothing => return (value, None),
            Remembered::Bytes(bytes) if bytes.len() <= LARGEST => Some(&**bytes),
            Remembered::Bytes(_) | Remembered::Success => None,
        };
        let kept = Kept {
            fingerprint: keeping.fingerprint,
            value: stored,
        };
        let (bytes, keep) = (kept.bytes().into(), keeping.keep);
        (value, Some(RunResult { bytes, keep }))
    }

    fn count(key: &LockKey, is_lost: bool) {
        count(key, if is_lost { "not_stored" } else { "ran" });
    }
}

/// Counts a call by its outcome: the body ran, and its result was stored (`ran`) or not (`not_stored`), or the result of an
/// earlier run was returned (`replayed`) or withheld (`refused`).
fn count(key: &LockKey, outcome: &'static str) {
    telemetry::count("lock_once_total", key, &[("outcome", outcome)]);
}

/// Decodes the value of an earlier run.
fn recalled<T>(by: &Remembering<T>, keeping: &Keeping, bytes: &[u8]) -> Result<T, LockError> {
    let key = &keeping.key;
    let unreadable = |why: String| {
        LockError::invalid(format!(
            "the stored result could not be decoded: {why}; if the type of the value has changed, use another key, or delete \
             the result with `forget`"
        ))
        .about(key)
    };
    let repeated = |reason| LockError::Repeated {
        key: key.clone(),
        reason,
    };
    let kept = Kept::read(bytes)
        .ok_or_else(|| unreadable("it was stored in another version".to_owned()))?;
    if let (Some(theirs), Some(ours)) = (kept.fingerprint, keeping.fingerprint)
        && theirs != ours
    {
        return Err(repeated(Repeat::OtherRequest));
    }
    let value = kept.value.ok_or_else(|| repeated(Repeat::NotKept))?;
    (by.recall)(value).map_err(|error| unreadable(error.to_string()))
}
