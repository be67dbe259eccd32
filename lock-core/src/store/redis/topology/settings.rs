//! The settings of every server of a manager.

use std::{sync::Arc, time::Duration};

use crate::store::{grants::Grants, redis::connection::pub_sub::PubSubDispatch, timing::Timing};

/// The settings of every server of a manager.
#[derive(Clone, Debug)]
pub(crate) struct ServerSettings {
    pub(crate) timing: Timing,
    /// A random name of the manager.
    pub(crate) manager: Arc<str>,
    pub(crate) grants: Arc<Grants>,
    pub(crate) replicas: Option<Replicas>,
}

/// How many replicas must have a lock before it counts, and how long that may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) least: u32,
    pub(crate) within: Duration,
}

impl ServerSettings {
    /// A dispatch for grants, or for hints if replicas must have a lock before it counts.
    pub(crate) fn dispatch(&self, channel: Arc<str>) -> PubSubDispatch {
        let dispatch = PubSubDispatch::new(channel, self.manager.clone(), self.grants.clone());
        if self.replicas.is_some() {
            dispatch.for_hints()
        } else {
            dispatch
        }
    }
}
