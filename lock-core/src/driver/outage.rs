//! Outages of the backend. While it does not reply, new requests fail at once instead of each waiting for its own time-out.
//!
//! Requests that were waiting before the outage continue to wait, and so do those that may wait forever. With servers that
//! can fail over, new requests also wait by default, since how long a fail-over takes depends on the servers'
//! configuration.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    backend::Reply,
    error::LockError,
    failure::{Failure, Source},
    moment::Moment,
    options::Wait,
    runtime::{clock::Clock, executor::Executor, mutex::Mutex},
};

/// The outage state of one manager. Each reply is recorded here, as is each request that got none.
pub(crate) struct Outage {
    /// How long an outage must last before new requests are refused; `None` if they always wait.
    fail_fast_after: Option<Duration>,
    /// When the outage began, in nanoseconds of the manager's clock: the time of the first failure since the last reply. 0
    /// if there is no outage.
    since: AtomicU64,
    last_failure: Mutex<Option<Source>>,
    /// `true` if a request is in flight whose only purpose is to find out whether the outage is over.
    is_probing: AtomicBool,
}

impl Outage {
    pub(crate) fn new(fail_fast_after: Option<Duration>) -> Self {
        Self {
            fail_fast_after,
            since: AtomicU64::new(0),
            last_failure: Mutex::new(None),
            is_probing: AtomicBool::new(false),
        }
    }

    /// Records the result of a request: a reply from the backend ends an outage, and a failure may begin one.
    pub(crate) fn note<T>(&self, result: &Result<T, Failure>, clock: &Clock) {
        match result {
            Err(Failure::NoReply(source) | Failure::LostVote(source) | Failure::NotNow(source)) => {
                *self.last_failure.lock() = Some(source.clone());
                // If two requests fail at the same time, both may store their time. It does not matter which one remains.
                if self.since.load(Ordering::Relaxed) == 0 {
                    let first = clock.now().as_nanos().max(1);
                    self.since.store(first, Ordering::Release);
                }
            }
            // Written only if there was an outage, because a write evicts the value from the caches of other threads.
            _ if self.since.load(Ordering::Relaxed) != 0 => self.since.store(0, Ordering::Release),
            _ => {}
        }
    }

    /// Returns the last failure if no request has got a reply since.
    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        if self.since.load(Ordering::Acquire) == 0 {
            return None;
        }
        let failure = self.last_failure.lock().clone();
        failure.map(|failure| failure.to_string().into())
    }

    /// Refuses a request that begins during an outage, unless it may wait forever. To find out whether the outage is over,
    /// a refused request also sends `look`, which reads a key, unless another such request is in flight.
    pub(crate) fn check<T: Send + 'static>(
        self: &Arc<Self>,
        wait: Wait,
        clock: &Clock,
        executor: &Executor,
        look: impl FnOnce() -> Reply<T>,
    ) -> Result<(), LockError> {
        let since = self.since.load(Ordering::Acquire);
        let Some(fail_fast_after) = self.fail_fast_after else {
            return Ok(());
        };
        if since == 0 || wait == Wait::Forever {
            return Ok(());
        }
        let lasts = clock.now().since(Moment::from_nanos(since));
        if lasts < fail_fast_after {
            return Ok(());
        }
        if !self.is_probing.swap(true, Ordering::AcqRel) {
            let (probe, reply, clock) = (Probe(self.clone()), look(), clock.clone());
            executor.spawn(async move { probe.0.note(&reply.await, &clock) });
        }
        let last_failure = self.last_failure.lock().clone();
        Err(LockError::unavailable(NoContact {
            lasts,
            last_failure,
        }))
    }
}

/// Clears the flag `is_probing` when its task ends, for whatever reason.
struct Probe(Arc<Outage>);

impl Drop for Probe {
    fn drop(&mut self) {
        self.0.is_probing.store(false, Ordering::Release);
    }
}

/// The reason why a request was refused without being sent.
#[derive(Debug)]
struct NoContact {
    lasts: Duration,
    last_failure: Option<Source>,
}

impl fmt::Display for NoContact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lasts = self.lasts;
        write!(
            f,
            "the backend has not replied for {lasts:.1?}, so this request does not wait (fail_fast_after)"
        )?;
        match &self.last_failure {
            Some(failure) => write!(f, ": {failure}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for NoContact {}
