//! How a lock went from one holder to the next.

#[derive(Clone, Copy, Debug)]
pub(crate) enum HandOff {
    /// From task to task of one process, without a message.
    Local,
    /// By the server, from another process.
    Remote,
}
