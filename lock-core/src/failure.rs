//! The failure of a request to a backend.

use std::{error::Error, sync::Arc};

/// The reason why a request has no usable reply.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// No reply arrived, so it is unknown whether the request was executed.
    NoReply(Source),
    /// Several servers were asked, and no majority agreed, although one is still possible. Some servers may have executed
    /// the request.
    LostVote(Source),
    /// The request was not executed, but a retry may succeed: the server is loading, out of memory, or read-only.
    NotNow(Source),
    /// The request was not executed, and a retry cannot succeed: a right is missing, or a command is unknown.
    Refused(Source),
    /// The request was not executed, because it is itself wrong.
    Invalid(Arc<str>),
}

/// The cause of a failure, for the user's log.
pub(crate) type Source = Arc<dyn Error + Send + Sync>;

impl Failure {
    /// Creates the failure of a request that was not sent, because there is no connection, or none that accepts more
    /// requests.
    pub(crate) fn not_now(message: impl Into<String>) -> Self {
        Self::NotNow(source(message.into()))
    }

    pub(crate) fn no_reply(message: impl Into<String>) -> Self {
        Self::NoReply(source(message.into()))
    }

    pub(crate) fn lost_vote(message: impl Into<String>) -> Self {
        Self::LostVote(source(message.into()))
    }

    /// Creates the failure of a request that would be refused again.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::Refused(source(message.into()))
    }

    /// Converts the failure of one step of a request whose other steps were executed, so that its outcome is unknown.
    pub(crate) fn executed_in_part(self) -> Self {
        Self::NoReply(self.into_source())
    }

    fn into_source(self) -> Source {
        match self {
            Self::NoReply(source)
            | Self::LostVote(source)
            | Self::NotNow(source)
            | Self::Refused(source) => source,
            Self::Invalid(reason) => source(reason.to_string()),
        }
    }

    /// Returns `true` if it is certain that the request was not executed.
    pub(crate) fn is_definite(&self) -> bool {
        !matches!(self, Self::NoReply(_) | Self::LostVote(_))
    }

    /// Returns the text that is written to the log.
    pub(crate) fn text(&self) -> String {
        self.clone().into_source().to_string()
    }

    /// Returns `true` if a retry can succeed.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::NoReply(_) | Self::LostVote(_) | Self::NotNow(_))
    }
}

fn source(message: String) -> Source {
    Arc::from(Box::<dyn Error + Send + Sync>::from(message))
}

impl From<Failure> for crate::error::LockError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Invalid(reason) => Self::Invalid { key: None, reason },
            unavailable => Self::Unavailable {
                key: None,
                source: unavailable.into_source(),
            },
        }
    }
}
