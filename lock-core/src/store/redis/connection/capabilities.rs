//! By which commands locks are kept on a server.

/// The commands by which locks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capabilities {
    /// Scripts: everything works.
    Scripts,
    /// Commands alone: waiters poll.
    Commands(Compare),
}

/// The commands that change a key only if it holds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    /// `DELEX … IFEQ` and `SET … IFEQ`: Redis 8.4 and later.
    Delex,
    /// `DELIFEQ` and `SET … IFEQ`: Valkey 9 and later.
    Delifeq,
    /// `WATCH`, `MULTI` and `EXEC`, on a connection of their own.
    Watch,
}
