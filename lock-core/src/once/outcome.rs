//! How a call for a body that runs once ended, for telemetry.

use crate::{key::LockKey, telemetry};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnceOutcome {
    /// It ran the body.
    Ran,
    /// It got the result of an earlier run.
    Replayed,
    /// The body ran before, and the result is not for this call.
    Refused,
    /// It ran the body, and the result is not kept.
    NotStored,
}

impl OnceOutcome {
    pub(super) fn report(self, key: &LockKey) {
        let outcome = match self {
            Self::Ran => "ran",
            Self::Replayed => "replayed",
            Self::Refused => "refused",
            Self::NotStored => "not_stored",
        };
        telemetry::count("lock_once_total", key, &[("outcome", outcome)]);
    }
}
