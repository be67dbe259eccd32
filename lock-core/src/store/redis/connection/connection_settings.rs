//! What the connections to one server are made with.

use std::sync::Arc;

use crate::store::{
    redis::{
        address::Address,
        connection::{handshake::Purpose, pub_sub::PubSubDispatch},
    },
    timing::Timing,
};

#[derive(Debug)]
pub(crate) struct ConnectionSettings {
    /// The address of the server. With sentinels, they give the host and port, and only its other settings count.
    pub(super) address: Address,
    pub(super) purpose: Purpose,
    pub(super) timing: Timing,
    pub(super) dispatch: PubSubDispatch,
    /// Locked during a transaction, and while the connection is authenticated anew: an AUTH in a transaction would only be queued.
    pub(super) transaction: Arc<tokio::sync::Mutex<()>>,
}
