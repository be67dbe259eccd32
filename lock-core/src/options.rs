//! The options of an acquire, and the bounds of their values.

use std::time::Duration;

use crate::{
    error::LockError,
    key::{IntoLockKey, LockKey},
    mode::Mode,
};

/// The shortest and the longest time that a lease may last without being renewed.
pub(crate) const TTL_RANGE: (Duration, Duration) = (
    Duration::from_millis(100),
    Duration::from_secs(24 * 60 * 60),
);

/// The smallest and the largest number of permits of a lock.
pub(crate) const PERMITS_RANGE: (u16, u16) = (1, 1_000);

/// The longest bounded wait. A longer one is refused.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The maximum number of bytes in a key, without the manager's prefix.
const LONGEST_KEY: usize = 512;

/// The maximum number of keys that one call can acquire.
pub(crate) const MOST_KEYS: usize = 64;

/// The maximum number of bytes in a manager's prefix.
const LONGEST_PREFIX: usize = 256;

/// The prefix of the library's own keys, such as the fencing clock. No lock may have such a key.
pub(crate) const RESERVED: &str = "__lock_core__:";

/// The options with which a lock is acquired.
///
/// An option that is not set takes the manager's default.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lock_core::LockError> {
/// # let manager = lock_core::LockManager::in_memory();
/// use std::time::Duration;
/// use lock_core::LockOptions;
///
/// // A crash blocks others for 10 s. The call waits for 2 s at most, and the body may take a minute.
/// let options = LockOptions::new(Duration::from_secs(10))
///     .wait(Duration::from_secs(2))
///     .max_hold(Duration::from_secs(60));
/// manager.run("order:42", options, async |_| println!("one at a time")).await?;
///
/// // A job that all replicas start at about the same time, and that only one of them should run.
/// let nightly = LockOptions::new(Duration::from_secs(90))
///     .no_wait()
///     .min_hold(Duration::from_secs(60));
/// manager.run("nightly-report", nightly, async |_| println!("once a night")).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until they are passed to a manager"]
pub struct LockOptions {
    pub(crate) ttl: Option<Duration>,
    pub(crate) wait: Option<Wait>,
    pub(crate) renewal: AutoRenew,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) on_lost: OnLost,
    pub(crate) release: Option<ReleaseMode>,
    pub(crate) mode: Mode,
}

/// How long an acquire may wait for a busy lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    For(Duration),
    Forever,
}

/// Determines whether a lease is renewed while it is held, or ends at its ttl.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AutoRenew {
    #[default]
    On,
    Off,
}

/// Determines when a call that runs a body returns after the body has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReleaseMode {
    /// Once the server has replied to the release.
    #[default]
    Awaited,
    /// Once the release has been handed over to the connection.
    InBackground,
}

/// Determines what happens to a running body whose lease is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLost {
    /// The body is dropped at its next await, and the caller gets [`LockError::Lost`]. The default.
    #[default]
    Cancel,
    /// The body continues without protection. Choose this only for work that may safely run twice at the same time.
    Continue,
}

impl LockOptions {
    /// Creates options with a ttl, which is how long a crash of the holder blocks all others.
    ///
    /// The ttl does not bound how long the lock may be held, because the lease is renewed while it is held. It may be 100
    /// ms to 24 h. With a short ttl, the lock is free sooner after a crash, but even a short outage of the network or the
    /// server loses it. With a long ttl, the lease survives longer outages, but blocks others for longer after a crash.
    pub const fn new(ttl: Duration) -> Self {
        Self {
            ttl: Some(ttl),
            wait: None,
            renewal: AutoRenew::On,
            max_hold: None,
            min_hold: None,
            on_lost: OnLost::Cancel,
            release: None,
            mode: Mode::Exclusive,
        }
    }

    /// Sets the ttl. [`new`](Self::new) describes the trade-off. Defaults to the manager's ttl.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets how long an acquire may wait for a busy lock.
    ///
    /// With a short wait, [`LockError::Busy`] is returned sooner. With a long wait, more tasks pile up in the wait queues.
    /// Zero means [`no_wait`](Self::no_wait), and more than 365 days is [`LockError::Invalid`]. Defaults to the manager's
    /// wait.
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(if wait.is_zero() {
            Wait::No
        } else {
            Wait::For(wait)
        });
        self
    }

    /// Lets an acquire wait indefinitely.
    ///
    /// The future stays pending while the lock is busy or the backend is unavailable. If that is too long, wrap it in a
    /// time-out. With a bounded wait, on the other hand, a task may give up shortly before its turn. Defaults to the
    /// manager's wait.
    #[doc(alias = "leader election")]
    pub const fn wait_forever(mut self) -> Self {
        self.wait = Some(Wait::Forever);
        self
    }

    /// Makes an acquire ask once, and return [`LockError::Busy`] without waiting.
    ///
    /// This suits work that another holder does just as well. Waiting is better than retrying in a loop, which has no
    /// position in the wait queue, and costs the server a command each time. Defaults to the manager's wait.
    #[doc(alias = "cron")]
    pub const fn no_wait(mut self) -> Self {
        self.wait = Some(Wait::No);
        self
    }

    /// Acquires the lock in shared mode: together with other shared holders, and never together with an exclusive one.
    ///
    /// Use it for work that only reads what the lock protects: many such holders run at a time, across all processes, while
    /// an exclusive holder runs alone. All requests wait in one queue. Shared requests that wait there are granted
    /// together, but the next exclusive request is granted before any shared request that arrives later, so neither mode
    /// starves the other.
    ///
    /// Work that writes must not use it, because other work would write at the same time. An exclusive request waits until
    /// all shared holders before it have ended, so the slowest of them determines its wait. All holders of one shared phase
    /// have the same [fencing token](crate::lease::Lease::fencing_token), which does not tell them apart.
    ///
    /// A process keeps its share for up to a second after its last task has ended, which saves the next task a round trip.
    /// The first exclusive request ends the share, and so does dropping the last manager. If the process is killed in that
    /// second, exclusive requests are blocked for the ttl, just as if it had been killed in a body. Clients that do not
    /// queue (other libraries, or server users without scripts) cannot end the share, and starve while readers
    /// overlap.
    ///
    /// A body that holds a key shared cannot acquire it exclusively: the call returns [`LockError::Invalid`], because two
    /// such bodies would wait for each other forever. If the body may write, acquire the key exclusively from the start.
    /// Several independent servers (Redlock) only support exclusive locks, and refuse a shared request as
    /// [`LockError::Invalid`].
    ///
    /// If both this and [`permits`](Self::permits) are called, the last call counts. In a list, each key can have a mode of
    /// its own: see [`LockManager::acquire_all`](crate::manager::LockManager::acquire_all). Defaults to exclusive mode.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// # let manager = lock_core::LockManager::in_memory();
    /// use lock_core::LockOptions;
    ///
    /// let reads = LockOptions::default().shared();
    /// let price = manager.run("prices", reads, async |_| 42).await?;
    /// # assert_eq!(price, 42);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "rwlock")]
    #[doc(alias = "read lock")]
    pub const fn shared(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    /// Lets `n` holders have the lock at a time.
    ///
    /// Use it to limit work such as exports or calls to a partner's API: at most `n` bodies run at a time, across all
    /// processes. `n` is a number from 1 to 1,000; any other number is [`LockError::Invalid`] when the lock is acquired.
    /// Each holder has a permit, numbered from 0 to `n - 1`. With a [`min_hold`](Self::min_hold) of a second, at most `n`
    /// bodies start per second.
    ///
    /// With more permits, more bodies run at once. With fewer, more of them wait. Each request carries its own `n`, and is
    /// granted when fewer than `n` permits are taken. While services with different numbers run side by side, as during a
    /// deployment, the largest number is the bound. The first request in the queue is never overtaken, whatever its `n`.
    ///
    /// Use a key either always with permits or always without: while it is held or requested with permits, an exclusive or
    /// shared request is [`LockError::Invalid`], and vice versa. With several independent servers (Redlock), a request with
    /// permits is always [`LockError::Invalid`]. Fencing tokens of different permits are not comparable.
    ///
    /// If both this and [`shared`](Self::shared) are called, the last call counts. In a list, each key can have permits of
    /// its own: see [`LockManager::acquire_all`](crate::manager::LockManager::acquire_all). Defaults to a single holder, in
    /// exclusive mode.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// # let manager = lock_core::LockManager::in_memory();
    /// # struct Settings { exports: usize }
    /// # let settings = Settings { exports: 3 };
    /// use lock_core::LockOptions;
    ///
    /// let options = LockOptions::default().permits(settings.exports);
    /// manager.run("exports", options, async |_| println!("one of three at most")).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "semaphore")]
    #[doc(alias = "rate limit")]
    pub fn permits(mut self, n: usize) -> Self {
        self.mode = Mode::permits(n);
        self
    }

    pub(crate) const fn in_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Returns the mode of a key in a list, from the key's own options. Any other option that they set must equal that of
    /// the list.
    pub(crate) fn mode_in_list(&self, of_the_list: &Self) -> Result<Mode, LockError> {
        fn differs<T: Copy + PartialEq>(own: Option<T>, other: Option<T>) -> bool {
            own.is_some() && own != other
        }
        let all = of_the_list;
        let not_renewed = self.renewal == AutoRenew::Off && all.renewal == AutoRenew::On;
        let continues = self.on_lost == OnLost::Continue && all.on_lost == OnLost::Cancel;
        let options = [
            ("ttl", differs(self.ttl, all.ttl)),
            ("wait", differs(self.wait, all.wait)),
            ("max_hold", differs(self.max_hold, all.max_hold)),
            ("min_hold", differs(self.min_hold, all.min_hold)),
            ("release_in_background", differs(self.release, all.release)),
            ("without_renewal", not_renewed),
            ("on_lost", continues),
        ];
        match options.into_iter().find(|(_, differs)| *differs) {
            None => Ok(self.mode),
            Some((option, _)) => Err(LockError::invalid(format!(
                "the options of this key set `{option}` to another value than those of the list: all keys are held as one, so \
                 the options of one key may differ only in the mode"
            ))),
        }
    }

    /// Switches renewal off: the lease ends at its ttl, and the body with it.
    ///
    /// Use it for work that must never take longer than the ttl. A body that takes longer is dropped, even if no other task
    /// wants the lock. This saves one message for each third of the ttl. With renewal, a body that hangs keeps the lock,
    /// unless [`max_hold`](Self::max_hold) is set. Defaults to renewal.
    pub const fn without_renewal(mut self) -> Self {
        self.renewal = AutoRenew::Off;
        self
    }

    /// Bounds how long the lock is held: after this time the lease is lost.
    ///
    /// Use it for a body that may hang. The bound may be 100 ms to 24 h. If it is too short, it cancels work that is merely
    /// slow. If it is long, a body that hangs blocks others for that long. [Without renewal](Self::without_renewal), a
    /// bound above the ttl would never be reached, and is refused. Defaults to no bound.
    pub const fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Keeps the lock for at least this long, even if it is released sooner.
    ///
    /// Use it for a job that several replicas start by their own clocks: a replica that is late by less than this time
    /// finds the lock taken, and does not run the job again. The time may be 100 ms to 24 h. If it is too short, a late
    /// replica runs the job again. If it is too long, the next run still finds the lock of the previous one.
    ///
    /// The lock is kept whatever the body returns, so the other replicas skip even a job that has failed. If another
    /// replica should retry it, leave this option out, and record in a store that the job is done.
    ///
    /// The release makes the server keep the lock for the rest of this time. If the release does not reach the server
    /// before the lease has ended, the lock is free sooner. It is not taken again when the server is back, since an
    /// operator may have freed it in the meantime, or another holder may have had its turn. If the ttl is some seconds
    /// longer than this time, the lock lasts for this time even after a crash of the holder, and through any outage in
    /// which the server keeps its data. Defaults to none.
    pub const fn min_hold(mut self, min_hold: Duration) -> Self {
        self.min_hold = Some(min_hold);
        self
    }

    /// Sets what happens to the body when the lease is lost.
    ///
    /// A body that is cancelled may leave its work half done, while a body that continues may run at the same time as that
    /// of the next holder. Defaults to [`OnLost::Cancel`].
    pub const fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = on_lost;
        self
    }

    /// Makes [`run`](crate::manager::LockManager::run) and [`run_all`](crate::manager::LockManager::run_all) return as soon
    /// as the release has been handed to the connection, so that a lock costs its caller only one round trip.
    ///
    /// [`LockManagerBuilder::release_in_background`](crate::manager::builder::LockManagerBuilder::release_in_background)
    /// describes the trade-off. The option has no effect on guards:
    /// [`LockGuard::release`](crate::guard::LockGuard::release) always waits, and dropping a guard never does. Defaults to
    /// the manager's setting, which is to wait for the reply unless it was changed.
    pub const fn release_in_background(mut self) -> Self {
        self.release = Some(ReleaseMode::InBackground);
        self
    }
}

/// A key in a list, alone or with options that set its mode. See
/// [`LockManager::acquire_all`](crate::manager::LockManager::acquire_all).
///
/// Implemented for every [`IntoLockKey`], and for pairs of one and [`LockOptions`]. It cannot be implemented by hand.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lock_core::LockError> {
/// # let manager = lock_core::LockManager::in_memory();
/// use lock_core::LockOptions;
///
/// let options = LockOptions::default();
/// let keys = [("prices", options.clone().shared()), ("order:42", options.clone())];
/// let guard = manager.acquire_all(keys, options).await?;
/// # guard.release().await
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key in a list",
    label = "expected a text, a `LockKey`, or a pair of one with its `LockOptions`",
    note = "for keys in one mode, write `[\"account:4\", \"account:7\"]`",
    note = "for keys in different modes, write `[(\"prices\", options.clone().shared()), (\"order:42\", options.clone())]`"
)]
pub trait KeyInList {
    /// Returns the key and its own options.
    #[doc(hidden)]
    fn __into_parts(self) -> (LockKey, Option<LockOptions>);
}

#[diagnostic::do_not_recommend]
impl<K: IntoLockKey> KeyInList for K {
    fn __into_parts(self) -> (LockKey, Option<LockOptions>) {
        (self.into_lock_key(), None)
    }
}

impl<K: IntoLockKey> KeyInList for (K, LockOptions) {
    fn __into_parts(self) -> (LockKey, Option<LockOptions>) {
        let (key, options) = self;
        (key.into_lock_key(), Some(options))
    }
}

/// Checks the length of a manager's prefix.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), LockError> {
    if prefix.len() > LONGEST_PREFIX {
        return Err(LockError::invalid(format!(
            "the key prefix has {} bytes, but at most {LONGEST_PREFIX} are allowed: choose a shorter one",
            prefix.len()
        )));
    }
    Ok(())
}

pub(crate) fn is_too_long(key: &LockKey) -> bool {
    key.as_str().len() > LONGEST_KEY
}

/// Checks a key together with the manager's prefix.
pub(crate) fn check_key(prefix: &str, key: &LockKey) -> Result<(), LockError> {
    let text = key.as_str();
    if text.is_empty() {
        return Err(LockError::invalid(
            "the key is empty: name what is locked, as in `order:42`",
        ));
    }
    if is_too_long(key) {
        return Err(LockError::invalid(format!(
            "the key has {} bytes, but at most {LONGEST_KEY} are allowed: use a shorter key, or a hash of it",
            text.len()
        ))
        .about(key));
    }
    if prefix
        .bytes()
        .chain(text.bytes())
        .take(RESERVED.len())
        .eq(RESERVED.bytes())
    {
        return Err(LockError::invalid(format!(
            "keys that begin with `{RESERVED}` are reserved: choose another key or prefix"
        ))
        .about(key));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_keys_are_refused() {
        let reason = |prefix, text| match check_key(prefix, &LockKey::new(text)) {
            Err(LockError::Invalid { reason, .. }) => reason.to_string(),
            other => panic!("not `Invalid`: {other:?}"),
        };
        assert!(reason("lock:", String::new()).contains("empty"));
        assert!(reason("lock:", "é".repeat(257)).contains("514 bytes"));
        assert!(reason("", "__lock_core__:clock".to_owned()).contains("reserved"));
        assert!(reason("__lock_", "core__:clock".to_owned()).contains("reserved"));
        check_key("lock:", &LockKey::new("a")).expect("valid");
        check_key("", &LockKey::new("k".repeat(512))).expect("valid");
        check_key("__lock_core_", &LockKey::new("_")).expect("valid");
    }
}
