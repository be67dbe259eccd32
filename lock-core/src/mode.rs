//! The modes in which a lock is held: alone, shared, or by permits.

use std::fmt;

/// The mode in which a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LockMode {
    /// One holder alone. The default.
    Exclusive,
    /// Any number of holders that share it: see [`LockOptions::shared`](crate::options::LockOptions::shared).
    Shared,
    /// As many holders as there are permits: see [`LockOptions::permits`](crate::options::LockOptions::permits).
    Permits,
}

impl fmt::Display for LockMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl LockMode {
    /// Returns the mode's label in metrics and spans.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Permits => "permits",
        }
    }
}

/// The mode of a request, which determines the other holders that it admits beside itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Mode {
    /// No other holder.
    #[default]
    Exclusive,
    /// Other shared holders.
    Shared,
    /// Other holders of permits, up to this many in all.
    Permits(u16),
    /// No other holder. The body runs once: if an earlier run has stored its result, the request is answered with it.
    Once,
}

impl Mode {
    /// Converts a number of permits. If it is too large for `u16`, it becomes a number that the check of the options
    /// refuses.
    pub(crate) fn permits(n: usize) -> Self {
        Self::Permits(u16::try_from(n).unwrap_or(u16::MAX))
    }

    pub(crate) fn kind(self) -> RequestKind {
        match self {
            Self::Exclusive => RequestKind::Exclusive,
            Self::Shared => RequestKind::Shared,
            Self::Permits(_) => RequestKind::Permits,
            Self::Once => RequestKind::Once,
        }
    }

    pub(crate) fn is_alone(self) -> bool {
        self.kind().is_alone()
    }
}

/// The kinds of requests. Within a process, requests of one kind for a key are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RequestKind {
    Exclusive,
    Shared,
    Permits,
    /// Exclusive in every respect, except that the request may end with a result.
    Once,
}

impl RequestKind {
    pub(crate) const ALL: [Self; 4] = [Self::Exclusive, Self::Shared, Self::Permits, Self::Once];

    /// Returns `true` if the holder has the lock alone.
    pub(crate) fn is_alone(self) -> bool {
        matches!(self, Self::Exclusive | Self::Once)
    }

    /// Returns the mode that users see.
    pub(crate) fn shown(self) -> LockMode {
        match self {
            Self::Exclusive | Self::Once => LockMode::Exclusive,
            Self::Shared => LockMode::Shared,
            Self::Permits => LockMode::Permits,
        }
    }
}

/// Formats the mode as part of a sentence, as in "held exclusively" or "requested with 3 permits".
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusively"),
            Self::Shared => f.write_str("shared"),
            Self::Permits(1) => f.write_str("with one permit"),
            Self::Permits(n) => write!(f, "with {n} permits"),
            Self::Once => f.write_str("to run a body once"),
        }
    }
}
