//! The choice of commands by which locks are kept on a server.

/// The commands by which locks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capabilities {
    /// Scripts: everything works.
    Scripts,
    /// Commands alone: waiters poll.
    Commands(Compare),
}

/// The commands that change a key only if it holds a value.
///
/// `DELEX` and `SET … IFEQ` of Redis 8.4 and later are not among them. In Redis 8.6.2, `SET … IFEQ` on one key loses another one
/// while the server's table of keys shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    /// `DELIFEQ` and `SET … IFEQ`: Valkey 9 and later.
    Delifeq,
    /// `WATCH`, `MULTI` and `EXEC`, on a connection of their own.
    Watch,
}
