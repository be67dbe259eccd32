//! Moves a slot from one master to another, one step at a time, so that a test can act between two steps.

use super::{Cluster, View, id};
use crate::{
    server::RedisServer,
    wait::{HANG, eventually_blocking},
};

/// The migration of a slot, returned by [`Cluster::migration`]. Its steps are the methods, in the order of this page.
#[derive(Debug)]
pub struct Migration<'a> {
    cluster: &'a Cluster,
    slot: u16,
    source: &'a RedisServer,
    target: &'a RedisServer,
}

impl<'a> Migration<'a> {
    pub(super) fn new(cluster: &'a Cluster, slot: u16, target: &'a RedisServer) -> Self {
        let source = cluster.master_of_slot(slot);
        assert_ne!(
            source.port(),
            target.port(),
            "the target already has the slot"
        );
        Self {
            cluster,
            slot,
            source,
            target,
        }
    }

    /// Opens the slot on both sides: the source answers `ASK` for keys that it does not have.
    pub fn open(&self) {
        self.set_slot(self.target, &["IMPORTING", &id(self.source)]);
        self.set_slot(self.source, &["MIGRATING", &id(self.target)]);
    }

    /// Moves one key, if it exists.
    pub fn move_key(&self, key: &str) {
        let port = self.target.port().to_string();
        self.source
            .cli(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }

    /// Moves a lock: its key and its companion keys, all of which end with its name.
    pub fn move_lock(&self, full_key: &str) {
        let keys = self.keys_there().into_iter();
        for key in keys.filter(|key| key.ends_with(full_key)) {
            self.move_key(&key);
        }
    }

    /// Returns the keys that the source still has, a hundred at most.
    fn keys_there(&self) -> Vec<String> {
        let slot = self.slot.to_string();
        let reply = self.source.cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
        redis::from_redis_value(reply).expect("a list of names")
    }

    /// Moves all keys that the source still has, and returns their names.
    pub fn move_keys(&self) -> Vec<String> {
        let mut moved = Vec::new();
        loop {
            let keys = self.keys_there();
            if keys.is_empty() {
                return moved;
            }
            for key in &keys {
                self.move_key(key);
            }
            moved.extend(keys);
        }
    }

    /// Gives the slot to the target, which must have all keys. All masters are told, the target first.
    pub fn close(&self) {
        let target = id(self.target);
        self.set_slot(self.target, &["NODE", &target]);
        for other in self.cluster.masters() {
            self.set_slot(other, &["NODE", &target]);
        }
        eventually_blocking(HANG, "all nodes know who has the slot", || {
            let mut nodes = self.cluster.running();
            nodes.all(|node| {
                let owner = View::of(node).and_then(|view| view.master_of(self.slot));
                owner == Some(self.target.port())
            })
        });
    }

    /// Returns the master that gives the slot away.
    pub fn source(&self) -> &RedisServer {
        self.source
    }

    /// Returns the master that gets the slot.
    pub fn target(&self) -> &RedisServer {
        self.target
    }

    fn set_slot(&self, node: &RedisServer, state: &[&str]) {
        let slot = self.slot.to_string();
        let command = [&["CLUSTER", "SETSLOT", &slot], state].concat();
        node.cli(&command);
    }
}
