//! The terms of a call, which are its options after they were checked and completed with the manager's defaults.

use std::time::Duration;

use crate::{
    error::LockError,
    mode::Mode,
    moment::Moment,
    options::{
        AutoRenew, LONGEST_WAIT, LockOptions, OnLost, PERMITS_RANGE, ReleaseMode, TTL_RANGE, Wait,
    },
};

/// Checked options, with the manager's defaults filled in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    pub(crate) renew: AutoRenew,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) on_lost: OnLost,
    pub(crate) release: ReleaseMode,
    pub(crate) mode: Mode,
}

/// The bounds that `max_hold` and `min_hold` set, counted from when a task began to run under its lease.
///
/// `min_hold` has no effect after the lease was lost: if the key is gone by the time of the release, it is not set again,
/// since an operator may have freed it, or another process may have had it. Rejected: a longer expiry from the start, which
/// would block others after a crash.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HoldBounds {
    /// The moment at which the task loses the lease.
    pub(crate) held_until: Option<Moment>,
    /// The moment until which the key is kept, even if the task releases it sooner.
    pub(crate) kept_until: Option<Moment>,
}

/// The manager's values for options that are not set, and its bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    pub(crate) release: ReleaseMode,
    /// The longest ttl, and the longest `min_hold`, that this manager allows.
    pub(crate) max_ttl: Option<Duration>,
    /// Set if the backend supports only exclusive locks: the reason, for the error message.
    pub(crate) only_exclusive: Option<&'static str>,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(10),
            wait: Wait::For(Duration::from_secs(10)),
            release: ReleaseMode::Awaited,
            max_ttl: None,
            only_exclusive: None,
        }
    }
}

impl Defaults {
    pub(crate) fn check(self) -> Result<Self, LockError> {
        check_range("ttl", self.ttl)?;
        check_wait(self.wait)?;
        if let Some(max_ttl) = self.max_ttl {
            check_range("max_ttl", max_ttl)?;
        }
        self.check_most("ttl", self.ttl)?;
        Ok(self)
    }

    /// Checks a time for which a server must remember the lock: a ttl, or a `min_hold`, which may be longer than the ttl.
    fn check_most(&self, option: &str, value: Duration) -> Result<(), LockError> {
        match self.max_ttl {
            Some(most) if value > most => Err(LockError::invalid(format!(
                "{option} is {value:?}, but this manager allows at most {most:?} (max_ttl): a server that restarts must be \
                 kept out for as long as a lease may last, so choose a shorter one"
            ))),
            _ => Ok(()),
        }
    }
}

impl Terms {
    pub(crate) fn new(options: &LockOptions, defaults: Defaults) -> Result<Self, LockError> {
        let terms = Self {
            ttl: options.ttl.unwrap_or(defaults.ttl),
            wait: options.wait.unwrap_or(defaults.wait),
            renew: options.renewal,
            max_hold: options.max_hold,
            min_hold: options.min_hold,
            on_lost: options.on_lost,
            release: options.release.unwrap_or(defaults.release),
            mode: options.mode,
        };
        check_range("ttl", terms.ttl)?;
        check_wait(terms.wait)?;
        check_permits(terms.mode)?;
        if terms.max_hold.is_some() || terms.min_hold.is_some() {
            terms.check_holds()?;
        }
        defaults.check_most("ttl", terms.ttl)?;
        if let Some(min_hold) = terms.min_hold {
            defaults.check_most("min_hold", min_hold)?;
        }
        match (terms.mode, defaults.only_exclusive) {
            (Mode::Exclusive, _) | (_, None) => Ok(terms),
            (mode, Some(reason)) => Err(LockError::invalid(format!(
                "the lock is requested {mode}: {reason}"
            ))),
        }
    }

    /// Returns the bounds of a task that begins at this moment.
    pub(crate) fn bounds_from(&self, began: Moment) -> HoldBounds {
        HoldBounds {
            held_until: self.max_hold.map(|longest| began.after(longest)),
            kept_until: self.min_hold.map(|least| began.after(least)),
        }
    }

    fn check_holds(&self) -> Result<(), LockError> {
        if let Some(max_hold) = self.max_hold {
            check_range("max_hold", max_hold)?;
        }
        if let Some(min_hold) = self.min_hold {
            check_range("min_hold", min_hold)?;
        }
        // The attribute reports the same mistakes at compile time if the values are literals.
        match (self.min_hold, self.max_hold) {
            (Some(min), Some(max)) if min > max => Err(LockError::invalid(format!(
                "min_hold ({min:?}) is longer than max_hold ({max:?}): swap them, or leave one out"
            ))),
            (_, Some(max)) if max > self.ttl && self.renew == AutoRenew::Off => {
                let ttl = self.ttl;
                Err(LockError::invalid(format!(
                    "renewal is off, so the lease ends at its ttl ({ttl:?}) and never reaches max_hold ({max:?}): leave max_hold out, or \
                     choose a longer ttl"
                )))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the end of a wait that begins now, or `None` if it has no fixed end.
pub(crate) fn deadline(wait: Wait, now: Moment) -> Option<Moment> {
    match wait {
        Wait::For(wait) => Some(now.after(wait)),
        Wait::No | Wait::Forever => None,
    }
}

fn check_permits(mode: Mode) -> Result<(), LockError> {
    let (least, most) = PERMITS_RANGE;
    match mode {
        Mode::Permits(n) if n < least => Err(LockError::invalid(
            "permits is 0 or less, but must be at least 1: otherwise nobody could hold the lock, so choose how many may hold \
             it at a time",
        )),
        Mode::Permits(n) if n > most => {
            let or_more = if n == u16::MAX { " or more" } else { "" };
            Err(LockError::invalid(format!(
                "permits is {n}{or_more}, but must be at most 1,000: split the lock into several keys with fewer permits each"
            )))
        }
        _ => Ok(()),
    }
}

fn check_range(option: &str, value: Duration) -> Result<(), LockError> {
    let (least, most) = TTL_RANGE;
    if value < least {
        return Err(LockError::invalid(format!(
            "{option} is {value:?}, but must be at least {least:?}: below that, one slow round trip ends the lease"
        )));
    }
    if value > most {
        return Err(LockError::invalid(format!(
            "{option} is {value:?}, but must be at most 24 h: a lease is renewed while it is held, so choose how long a crash \
             may block others"
        )));
    }
    Ok(())
}

fn check_wait(wait: Wait) -> Result<(), LockError> {
    match wait {
        Wait::For(wait) if wait > LONGEST_WAIT => Err(LockError::invalid(format!(
            "wait is {wait:?}, but must be at most 365 days: write `.wait_forever()` to wait indefinitely"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(options: &LockOptions) -> Result<Terms, LockError> {
        Terms::new(options, Defaults::default())
    }

    fn reason(result: Result<impl std::fmt::Debug, LockError>) -> String {
        match result.expect_err("must be refused") {
            LockError::Invalid { reason, .. } => reason.to_string(),
            other => panic!("not `Invalid`: {other:?}"),
        }
    }

    #[test]
    fn durations_out_of_range_are_refused_by_name() {
        for bad in [
            Duration::ZERO,
            Duration::from_millis(99),
            Duration::from_secs(86_401),
            Duration::MAX,
        ] {
            assert!(reason(terms(&LockOptions::new(bad))).starts_with("ttl is"));
            assert!(
                reason(terms(&LockOptions::default().max_hold(bad))).starts_with("max_hold is")
            );
            assert!(
                reason(terms(&LockOptions::default().min_hold(bad))).starts_with("min_hold is")
            );
        }
        for good in [Duration::from_millis(100), Duration::from_secs(86_400)] {
            assert_eq!(terms(&LockOptions::new(good)).expect("in range").ttl, good);
        }
    }

    #[test]
    fn a_wait_beyond_the_clock_is_refused_and_zero_means_none() {
        assert!(
            reason(terms(&LockOptions::default().wait(Duration::MAX))).contains("wait_forever")
        );
        let none = terms(&LockOptions::default().wait(Duration::ZERO)).expect("allowed");
        assert_eq!(none.wait, Wait::No);
    }

    #[test]
    fn permits_out_of_range_are_refused() {
        let permits = |options: LockOptions| terms(&options).map(|terms| terms.mode);
        let none = LockOptions::default;
        assert!(reason(permits(none().permits(0))).starts_with("permits is 0 or less"));
        for (many, shown) in [
            (
                none().permits(1_001),
                "permits is 1001, but must be at most",
            ),
            (
                none().permits(65_534),
                "permits is 65534, but must be at most",
            ),
            (none().permits(usize::MAX), "permits is 65535 or more"),
        ] {
            let reason = reason(permits(many));
            assert!(reason.starts_with(shown), "{reason}");
        }
        for (good, n) in [(none().permits(1), 1), (none().permits(1_000), 1_000)] {
            assert_eq!(permits(good).expect("in range"), Mode::Permits(n));
        }
    }

    #[test]
    fn the_last_call_of_shared_and_permits_counts() {
        let mode = |options: LockOptions| terms(&options).expect("in range").mode;
        assert_eq!(mode(LockOptions::default()), Mode::Exclusive);
        let shared = LockOptions::default().permits(3).shared();
        assert_eq!(mode(shared.clone()), Mode::Shared);
        assert_eq!(mode(shared.permits(2)), Mode::Permits(2));
    }

    #[test]
    fn a_min_hold_beyond_max_hold_is_refused() {
        let options = LockOptions::default()
            .min_hold(Duration::from_secs(2))
            .max_hold(Duration::from_secs(1));
        assert_eq!(
            reason(terms(&options)),
            "min_hold (2s) is longer than max_hold (1s): swap them, or leave one out"
        );
    }

    /// `tests/ui` has the same text for literals in the attribute.
    #[test]
    fn a_max_hold_that_a_lease_without_renewal_never_reaches_is_refused() {
        let options = LockOptions::new(Duration::from_secs(10)).without_renewal();
        let bounded = |secs| options.clone().max_hold(Duration::from_secs(secs));
        assert_eq!(
            reason(terms(&bounded(60))),
            "renewal is off, so the lease ends at its ttl (10s) and never reaches max_hold (60s): leave max_hold out, or choose a \
             longer ttl"
        );
        terms(&bounded(10)).expect("max_hold may equal the ttl");
        let of_the_manager = LockOptions::default().without_renewal();
        let reason = reason(terms(&of_the_manager.max_hold(Duration::from_secs(11))));
        assert!(reason.contains("its ttl (10s)"), "{reason}");
    }

    #[test]
    fn options_that_are_not_set_come_from_the_manager() {
        let defaults = Defaults {
            ttl: Duration::from_secs(3),
            wait: Wait::Forever,
            release: ReleaseMode::InBackground,
            max_ttl: None,
            only_exclusive: None,
        };
        let terms = Terms::new(&LockOptions::default(), defaults).expect("valid");
        assert_eq!((terms.ttl, terms.wait), (defaults.ttl, defaults.wait));
        assert_eq!(terms.release, ReleaseMode::InBackground);
        let options = LockOptions {
            release: Some(ReleaseMode::Awaited),
            ..LockOptions::default()
        };
        let terms = Terms::new(&options, defaults).expect("valid");
        assert_eq!(terms.release, ReleaseMode::Awaited);
    }

    #[test]
    fn times_beyond_max_ttl_are_refused_by_name() {
        let defaults = Defaults {
            max_ttl: Some(Duration::from_secs(60)),
            ..Defaults::default()
        };
        let long = Duration::from_secs(61);
        let refused = |options: &LockOptions| reason(Terms::new(options, defaults));
        assert!(refused(&LockOptions::new(long)).starts_with("ttl is"));
        assert!(refused(&LockOptions::default().min_hold(long)).starts_with("min_hold is"));
        Terms::new(&LockOptions::default().max_hold(long), defaults)
            .expect("max_hold is not bounded");
        let own = Defaults {
            ttl: long,
            ..defaults
        };
        assert!(reason(own.check()).contains("max_ttl"));
    }
}
