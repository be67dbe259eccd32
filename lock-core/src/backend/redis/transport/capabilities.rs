//! What a server can do, and a proxy in front of it.

/// What can be done on a connection. Each connection asks, since the next one may lead to another server.
///
/// | scripts | all forwarded | locks |
/// | --- | --- | --- |
/// | yes | yes | of all kinds |
/// | yes | no | of all kinds, each request by a script for one lock, whose key is the first: a proxy may send the script to a server by that key |
/// | no | yes | exclusive ones by plain commands, whose waiters poll |
/// | no | no | none: nothing gives fencing tokens |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// `EVAL` and `EVALSHA` can be run.
    pub(crate) scripts: bool,
    /// Any command may be sent. A proxy that forwards no streams outside of scripts may close the connection at another command that it does
    /// not know, such as INFO and TIME; and one may send each command to a server of its first key.
    pub(crate) forwards_all: bool,
}
