//! The modes in which tests take a lock, as values.

use lock_core::LockOptions;

/// The mode in which a lock is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// By one holder at a time.
    Exclusive,
    /// By several holders that share it.
    Shared,
    /// By one holder of each of this many permits.
    Permits(u16),
}

impl Mode {
    /// Says in options, which are exclusive, that the lock is taken in this mode.
    pub fn of(self, options: LockOptions) -> LockOptions {
        match self {
            Self::Exclusive => options,
            Self::Shared => options.shared(),
            Self::Permits(permits) => options.permits(permits.into()),
        }
    }
}
