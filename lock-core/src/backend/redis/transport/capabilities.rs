//! The capabilities of a server, and of a proxy in front of it.

/// The capabilities of a connection. Each connection finds them out anew, since it may lead to another server.
///
/// | scripts | all forwarded | locks |
/// | --- | --- | --- |
/// | yes | yes | of all kinds |
/// | yes | no | of all kinds, each request by a script for one lock, whose key comes first: a proxy may choose the server by that key |
/// | no | yes | exclusive ones by plain commands, whose waiters poll |
/// | no | no | none: nothing can issue fencing tokens |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// `EVAL` and `EVALSHA` can be run.
    pub(crate) scripts: bool,
    /// Any command may be sent. A proxy that does not forward streams outside of scripts may also close the connection at other
    /// commands that it does not know, such as INFO and TIME, or send each command to the server of its first key.
    pub(crate) forwards_all: bool,
}
