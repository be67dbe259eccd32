//! The modes of a lock, as values.

use lock_core::LockOptions;

/// The mode in which a lock is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// For one holder at a time.
    Exclusive,
    /// For several holders that share it.
    Shared,
    /// For one holder of each of this many permits.
    Permits(u16),
}

impl Mode {
    /// Sets this mode in options that have the default, which is exclusive.
    pub fn of(self, options: LockOptions) -> LockOptions {
        match self {
            Self::Exclusive => options,
            Self::Shared => options.shared(),
            Self::Permits(permits) => options.permits(permits.into()),
        }
    }
}
