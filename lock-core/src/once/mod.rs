//! Bodies that run once: the options, and the result that is stored for later callers.

use std::{error::Error, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use sha1_smol::Sha1;

use crate::{
    error::LockError,
    key::LockKey,
    mode::Mode,
    once::fingerprint::json,
    options::{LockOptions, ReleaseMode},
};

pub(crate) mod attribute;
mod fingerprint;
#[cfg(feature = "axum")]
pub(crate) mod idempotency_key;
#[cfg(any(feature = "axum", feature = "poem"))]
mod kept_response;
pub(crate) mod run;

/// The shortest and the longest time for which a result may be kept.
const KEEP_RANGE: (Duration, Duration) = (
    Duration::from_millis(100),
    Duration::from_secs(365 * 24 * 60 * 60),
);

/// The maximum size of a result, in bytes.
pub(crate) const LARGEST: usize = 64 * 1024;

/// The options of a body that runs once: see [`LockManager::run_once`](crate::manager::LockManager::run_once).
///
/// # Examples
///
/// ```
/// # async fn f(locks: lock_core::LockManager) -> Result<(), lock_core::LockError> {
/// use std::time::Duration;
/// use lock_core::OnceOptions;
///
/// // A repeat within a day gets the receipt of the first call, unless it asks for another amount.
/// let options = OnceOptions::keep(Duration::from_secs(24 * 60 * 60))
///     .wait(Duration::from_secs(2))
///     .fingerprint(&("EUR", 1_999));
/// let charge = async |_| Ok::<_, lock_core::LockError>("paid".to_owned());
/// let receipt = locks.run_once("charge:42", options, charge).await??;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "idempotency")]
#[derive(Clone, Debug)]
#[must_use = "options do nothing until they are passed to a manager"]
pub struct OnceOptions {
    pub(crate) lock: LockOptions,
    pub(crate) keep: Duration,
    fingerprint: Option<Result<Fingerprint, String>>,
}

impl OnceOptions {
    /// Creates options that keep a result for this long, which may be 100 ms to 365 days.
    ///
    /// During this time, a repeat gets the result, and the body does not run. With a shorter time, a late repeat runs the
    /// body again. With a longer time, more results are stored on the server, each of up to 64 KiB.
    pub fn keep(keep: Duration) -> Self {
        Self {
            lock: LockOptions {
                release: Some(ReleaseMode::Awaited),
                ..LockOptions::default().in_mode(Mode::Once)
            },
            keep,
            fingerprint: None,
        }
    }

    /// Sets how long a crash of the process that runs the body blocks the others.
    ///
    /// The lease is renewed while the body runs. With a short ttl, the lock is free sooner after a crash, but even a short
    /// outage loses it. Defaults to the manager's ttl, which is 10 s unless it was set.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// Sets how long a caller waits for the result of a body that another caller runs, before it gets [`LockError::Busy`].
    ///
    /// With a short wait, callers get the error although the body is about to end. With a long wait, more tasks pile up in
    /// the wait queues. Defaults to the manager's wait, which is 10 s unless it was set.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.lock = self.lock.wait(wait);
        self
    }

    /// Makes a caller wait indefinitely for the result of a body that another caller runs. Defaults to the manager's wait.
    pub fn wait_forever(mut self) -> Self {
        self.lock = self.lock.wait_forever();
        self
    }

    /// Refuses a caller at once while another caller runs the body. Defaults to the manager's wait.
    pub fn no_wait(mut self) -> Self {
        self.lock = self.lock.no_wait();
        self
    }

    /// Bounds how long the body may run. After this time it is dropped, and the next caller runs it.
    ///
    /// If the bound is too short, it cancels work that is merely slow. If it is long, a body that hangs blocks the other
    /// callers for that long. Defaults to no bound.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.lock = self.lock.max_hold(max_hold);
        self
    }

    /// Sets the content of the request. A different request with the same key is then refused with [`LockError::Repeated`].
    ///
    /// A hash of the value as JSON is stored with the result, and each caller compares its own hash with it. The order of
    /// the entries of a map, and of the items of a `HashSet`, does not matter. Defaults to none, in which case all callers
    /// with the key get the result.
    pub fn fingerprint(mut self, of: &(impl Serialize + ?Sized)) -> Self {
        let fingerprint = json(of).map(Fingerprint::of);
        self.fingerprint = Some(fingerprint.map_err(|error| error.to_string()));
        self
    }

    /// Checks the options that are not part of the lock's terms.
    pub(crate) fn check(&self, key: &LockKey) -> Result<Keeping, LockError> {
        let (least, most) = KEEP_RANGE;
        if self.keep < least || self.keep > most {
            return Err(LockError::invalid(format!(
                "keep is {:?}, but must be {least:?} to 365 days: choose how long repeats get the result",
                self.keep
            ))
            .about(key));
        }
        let fingerprint = self.fingerprint.clone().transpose().map_err(|error| {
            LockError::invalid(format!(
                "the fingerprint cannot be serialized as JSON: {error}"
            ))
            .about(key)
        })?;
        Ok(Keeping {
            key: key.clone(),
            keep: self.keep,
            fingerprint,
        })
    }
}

/// The checked options that concern the result.
#[derive(Debug)]
pub struct Keeping {
    key: LockKey,
    pub(crate) keep: Duration,
    pub(crate) fingerprint: Option<Fingerprint>,
}

/// A value that all callers of [`run_once`](crate::manager::LockManager::run_once) get after the body has run. Only a
/// success is remembered.
///
/// Implemented for `Result<T, E>`, whose `Ok` is stored as JSON. With the features `axum` and `poem`, it is also
/// implemented for their responses, which are stored if the status is below 400.
///
/// # Examples
///
/// A decision that should be remembered must be a success, even if it is negative:
///
/// ```
/// #[derive(serde::Serialize, serde::Deserialize)]
/// enum Charged {
///     Accepted { receipt: String },
///     Declined,
/// }
/// # fn is_remembered<T: lock_core::Remember>() {}
/// # is_remembered::<Result<Charged, String>>();
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be remembered for later callers",
    label = "this value is given to every caller, in every process",
    note = "return `Result<T, E>` where `T: serde::Serialize + serde::de::DeserializeOwned`",
    note = "in a handler, return `impl IntoResponse`, `Result<impl IntoResponse, E>` or the response of axum or poem, with the \
            feature of `lock-core` of the same name; or with `#[run_once]`, `Result<Json<T>, E>`",
    note = "or implement `lock_core::Remember` for a type of your own"
)]
pub trait Remember: Sized {
    /// Returns the value, and the part of it that is remembered.
    fn remember(self) -> (Self, Remembered);

    /// Restores the value for a later caller.
    ///
    /// # Errors
    ///
    /// Returns any error if the bytes are those of another type. The caller then gets [`LockError::Invalid`], and the body
    /// does not run.
    fn recall(bytes: &[u8]) -> Result<Self, Box<dyn Error + Send + Sync>>;
}

/// The functions of [`Remember`] for a type that implements it. This is required in one place only, so that the compiler
/// reports a single error.
#[derive(Debug)]
pub struct Remembering<T> {
    pub(crate) remember: fn(T) -> (T, Remembered),
    pub(crate) recall: fn(&[u8]) -> Recalled<T>,
}

/// A value, or the reason why it could not be restored from the bytes.
type Recalled<T> = Result<T, Box<dyn Error + Send + Sync>>;

impl<T: Remember> Remembering<T> {
    pub(crate) const NEW: Self = Self {
        remember: T::remember,
        recall: T::recall,
    };
}

/// The part of a value that is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remembered {
    /// Nothing, because it is a failure. The next caller runs the body.
    Nothing,
    /// These bytes, at most 64 KiB.
    Bytes(Vec<u8>),
    /// Only the fact that it was a success. A repeat does not run the body, and gets [`LockError::Repeated`].
    Success,
}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned, E> Remember for Result<T, E> {
    fn remember(self) -> (Self, Remembered) {
        let remembered = match &self {
            Ok(value) => serde_json::to_vec(value).map_or_else(
                |error| {
                    tracing::warn!(%error, "the value of a run cannot be serialized as JSON: a repeat does not get it");
                    Remembered::Success
                },
                Remembered::Bytes,
            ),
            Err(_) => Remembered::Nothing,
        };
        (self, remembered)
    }

    fn recall(bytes: &[u8]) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(Ok(serde_json::from_slice(bytes)?))
    }
}

/// A hash of the content of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint([u8; LENGTH]);

const LENGTH: usize = 16;

impl Fingerprint {
    fn of(mut value: Value) -> Self {
        // The order of a map's entries may be random, but must not change the fingerprint.
        value.sort_all_objects();
        let hash = Sha1::from(value.to_string()).digest().bytes();
        Self(*hash.first_chunk().expect("the hash is longer"))
    }
}

/// A result in its stored form: a byte for the version, a byte of flags, the fingerprint if there is one, and the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept<'a> {
    pub(crate) fingerprint: Option<Fingerprint>,
    /// `None` if the body has run, but its value was not stored.
    pub(crate) value: Option<&'a [u8]>,
}

const VERSION: u8 = b'1';
const HAS_FINGERPRINT: u8 = 1;
const HAS_VALUE: u8 = 2;

impl<'a> Kept<'a> {
    /// Decodes the result of an earlier run. Returns `None` if it has another version, or was not written by this library.
    pub(crate) fn read(bytes: &'a [u8]) -> Option<Self> {
        let [VERSION, flags, rest @ ..] = bytes else {
            return None;
        };
        let has = |flag| flags & flag != 0;
        let (fingerprint, rest) = if has(HAS_FINGERPRINT) {
            let (fingerprint, rest) = rest.split_first_chunk()?;
            (Some(Fingerprint(*fingerprint)), rest)
        } else {
            (None, rest)
        };
        Some(Self {
            fingerprint,
            value: has(HAS_VALUE).then_some(rest),
        })
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let fingerprint = self.fingerprint.as_ref();
        let flags =
            fingerprint.map_or(0, |_| HAS_FINGERPRINT) | self.value.map_or(0, |_| HAS_VALUE);
        let fingerprint = fingerprint.map_or(&[][..], |fingerprint| &fingerprint.0);
        let value = self.value.unwrap_or_default();
        [&[VERSION, flags], fingerprint, value].concat()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use super::*;
    use crate::{
        engine::terms::{Defaults, Terms},
        key::IntoLockKey as _,
    };

    fn fingerprint(of: &impl Serialize) -> Fingerprint {
        Fingerprint::of(json(of).expect("JSON"))
    }

    #[test]
    fn a_result_is_read_as_it_was_written() {
        let marked = Some(fingerprint(&"request"));
        for fingerprint in [None, marked] {
            for value in [None, Some(&b""[..]), Some(&b"\x00value"[..])] {
                let kept = Kept { fingerprint, value };
                assert_eq!(Kept::read(&kept.bytes()), Some(kept));
            }
        }
    }

    #[test]
    fn bytes_that_no_run_stored_are_not_a_result() {
        let marked = Kept {
            fingerprint: Some(fingerprint(&1)),
            value: None,
        };
        for bytes in [&b""[..], b"1", b"2\x02{}", b"{}", &marked.bytes()[..17]] {
            assert_eq!(Kept::read(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn a_fingerprint_does_not_depend_on_the_order_of_a_map() {
        let names = ["amount", "currency", "card", "customer", "note", "retry"];
        let sorted: BTreeMap<_, _> = names.iter().zip(0..).collect();
        for _ in 0..16 {
            let random: HashMap<_, _> = names.iter().zip(0..).collect();
            assert_eq!(fingerprint(&random), fingerprint(&sorted));
        }
    }

    #[test]
    fn different_values_have_different_fingerprints() {
        let all = [
            fingerprint(&("a", "b")),
            fingerprint(&("ab",)),
            fingerprint(&("b", "a")),
            fingerprint(&"a"),
            fingerprint(&["a,b"]),
            fingerprint(&1),
            fingerprint(&"1"),
            fingerprint(&None::<u8>),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one), "{at}");
        }
    }

    /// With a release in the background, the caller would continue before it is known that a result could not be stored.
    #[test]
    fn the_release_of_a_run_is_awaited_despite_the_managers_default() {
        let defaults = Defaults {
            release: ReleaseMode::InBackground,
            ..Defaults::default()
        };
        let options = OnceOptions::keep(Duration::from_secs(1));
        let terms = Terms::new(&options.lock, defaults).expect("valid");
        assert_eq!(terms.release, ReleaseMode::Awaited);
    }

    #[test]
    fn a_time_out_of_range_and_an_unserializable_value_are_refused() {
        for keep in [Duration::ZERO, Duration::from_millis(99), Duration::MAX] {
            let refused = OnceOptions::keep(keep)
                .check(&"k".into_lock_key())
                .expect_err("out of range");
            assert!(refused.to_string().contains("keep is"), "{refused}");
        }
        let no_json = HashMap::from([((1, 2), 3)]);
        let options = OnceOptions::keep(Duration::from_secs(1)).fingerprint(&no_json);
        let refused = options
            .check(&"k".into_lock_key())
            .expect_err("a map with such keys");
        assert!(refused.to_string().contains("fingerprint"), "{refused}");
    }
}
