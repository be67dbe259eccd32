//! The modes in which tests take a lock, as values.

use lock_core::{IntoLockKey, LockKey};

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
    /// Names a key that is to be taken in this mode.
    pub fn of(self, key: &str) -> impl IntoLockKey + Clone + use<> {
        let key = LockKey::new(key);
        match self {
            Self::Exclusive => key.exclusive(),
            Self::Shared => key.shared(),
            Self::Permits(permits) => key.permits(permits),
        }
    }
}
