//! What a call for a body that runs once ended with.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnceOutcome {
    /// It ran the body.
    Ran,
    /// It got the result of an earlier run.
    Replayed,
    /// The body ran before, and the result is not for this call.
    Refused,
    /// It ran the body, and the result is not kept.
    NotStored,
}

#[cfg(feature = "metrics")]
impl OnceOutcome {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Ran => "ran",
            Self::Replayed => "replayed",
            Self::Refused => "refused",
            Self::NotStored => "not_stored",
        }
    }
}
