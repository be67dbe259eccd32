//! Whether the grants for a key reach this process.

/// Whether grants will arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantDelivery {
    Pushed,
    /// Not now: the reply has not come yet, or the connection broke.
    NotSubscribedYet,
    Unsupported,
}
