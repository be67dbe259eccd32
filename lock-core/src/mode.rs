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
    /// As many holders as it has permits: see [`LockOptions::permits`](crate::options::LockOptions::permits).
    Permits,
}

impl fmt::Display for LockMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl LockMode {
    /// The mode's label in metrics and spans.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Permits => "permits",
        }
    }
}

/// Which other holders a holder admits beside itself, and what a request is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Mode {
    /// None.
    #[default]
    Exclusive,
    /// Other shared holders.
    Shared,
    /// Other holders of permits, up to this many in all.
    Permits(u16),
    /// None: to run a body once. A request is answered with the result of an earlier run, if there is one.
    Once,
}

impl Mode {
    /// Replaces a number that does not fit by one that is refused where options are checked.
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

/// The modes of which the requests of a process for a key go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RequestKind {
    Exclusive,
    Shared,
    Permits,
    /// Exclusive in every respect, but that it may end with a result.
    Once,
}

impl RequestKind {
    pub(crate) const ALL: [Self; 4] = [Self::Exclusive, Self::Shared, Self::Permits, Self::Once];

    /// Whether a holder has the lock alone.
    pub(crate) fn is_alone(self) -> bool {
        matches!(self, Self::Exclusive | Self::Once)
    }

    /// The mode that users see.
    pub(crate) fn shown(self) -> LockMode {
        match self {
            Self::Exclusive | Self::Once => LockMode::Exclusive,
            Self::Shared => LockMode::Shared,
            Self::Permits => LockMode::Permits,
        }
    }
}

/// How a key is held or requested.
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
