//! The events of a connection other than replies: push messages, its beginning and its end.

use std::fmt;

use redis::PushInfo;

use crate::{backend::redis::transport::capabilities::Capabilities, telemetry};

/// Receives the events of the connections to a server. Called with no mutex held.
pub(crate) trait ConnectionEvents: fmt::Debug + Send + Sync {
    /// Returns the channel that a connection subscribes to before it is used, if it also receives push messages.
    fn channel(&self) -> &str {
        Default::default()
    }

    /// The server pushed a message.
    fn pushed(&self, _message: &PushInfo) {}

    /// The server, or this user, cannot subscribe.
    fn not_subscribed(&self, _server: &str, _why: &str) {}

    /// A connection is ready, and these commands can be used on it.
    fn opened(&self, _capabilities: Capabilities) {}

    /// A connection has been made.
    fn connected(&self) {}

    /// A connection that was in use has ended.
    fn disconnected(&self) {}

    /// After the end of a connection, no new one could be made.
    fn out_of_reach(&self, server: &str, cause: &str) {
        telemetry::out_of_reach(server, cause, 0, None);
    }
}

/// The events of connections that are used only for replies; it ignores them.
#[derive(Debug)]
pub(crate) struct RepliesOnly;

impl ConnectionEvents for RepliesOnly {}
