//! What the store reports by itself: grants that came by a message, and the ends and beginnings of connections.

use std::sync::Arc;

use crate::{
    fencing::FencingToken,
    key::LockKey,
    lock::registry::Registry,
    runtime::clock::Moment,
    store::grants::{EntryNumber, GrantListener},
};

impl GrantListener for Registry {
    fn granted(self: Arc<Self>, key: &LockKey, entry: EntryNumber, fencing: FencingToken) {
        self.event(key, |state, cx| {
            let owner = state
                .state
                .asking_owner()
                .filter(|owner| owner.entry.number() == entry);
            if let Some(owner) = owner.cloned() {
                state.state.pushed(&owner, fencing, cx);
            }
        });
    }

    fn reconnected(self: Arc<Self>, key: &LockKey, since: Moment) {
        self.event(key, |entry, cx| {
            entry.state.reconnected(since, cx);
        });
    }

    fn disconnected(self: Arc<Self>, key: &LockKey, since: Moment) {
        self.event(key, |entry, cx| {
            entry.state.disconnected(since, cx);
        });
    }
}
