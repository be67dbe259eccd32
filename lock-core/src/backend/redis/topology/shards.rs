//! Several shards behind one endpoint, which sends each command to the shard of its keys, and refuses a command whose keys are on two.
//!
//! The companions of a lock are therefore named as in a cluster, with one fencing clock for each slot. Nevertheless there is
//! one connection, on which grants arrive.

use std::sync::Arc;

use crate::backend::redis::topology::{
    companions::{SlotNames, slot_of},
    key_location::KeyLocation,
    server::RedisServer,
};

/// The shards behind one endpoint.
#[derive(Debug)]
pub(crate) struct Shards {
    endpoint: Arc<RedisServer>,
    names: SlotNames,
}

impl Shards {
    pub(crate) fn behind(endpoint: Arc<RedisServer>, manager: &str) -> Self {
        Self {
            endpoint,
            names: SlotNames::with_one_channel(manager),
        }
    }

    pub(crate) fn location(&self, full_key: &str) -> KeyLocation {
        let slot = slot_of(full_key);
        KeyLocation::at(self.endpoint.clone(), self.names.of(slot), slot)
    }

    pub(crate) fn endpoint(&self) -> &Arc<RedisServer> {
        &self.endpoint
    }
}
