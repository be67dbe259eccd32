//! A point in time on a manager's clock, which all modules of the crate share.

use std::time::Duration;

/// A point in time on one manager's clock, in nanoseconds since an arbitrary origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    /// The moment that no clock ever reaches.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the moment that is `span` after the origin.
    pub(crate) fn from_origin(span: Duration) -> Self {
        Self(nanos(span))
    }

    pub(crate) const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the moment that is `span` later. Saturates at [`NEVER`](Self::NEVER).
    pub(crate) fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }

    /// Returns the moment that is `span` earlier. Saturates at the clock's origin.
    pub(crate) fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)))
    }

    /// Returns the time from `earlier` to this moment, or zero if `earlier` is in fact later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_never_overflows() {
        let late = Moment::from_nanos(u64::MAX - 1);
        assert_eq!(late.after(Duration::MAX).as_nanos(), u64::MAX);
        assert_eq!(Moment::from_nanos(1).since(late), Duration::ZERO);
    }
}
