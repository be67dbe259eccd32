//! What the store reports by itself: pushed messages, and connections that end or begin.

use std::sync::Arc;

use crate::{
    key::LockKey,
    lock::registry::Registry,
    mode::LockMode,
    runtime::clock::Moment,
    store::{
        PushedGrant,
        grants::{EntryNumber, GrantListener, HeldNow},
        owner::Owner,
    },
};

impl GrantListener for Registry {
    fn granted(
        self: Arc<Self>,
        key: &LockKey,
        kind: LockMode,
        entry: EntryNumber,
        granted: PushedGrant,
    ) {
        self.event(key, kind, |state, cx| {
            if let Some(owner) = named(state.state.asking_owner(), entry) {
                state.state.pushed(&owner, granted, cx);
            }
        });
    }

    fn contended(self: Arc<Self>, key: &LockKey, kind: LockMode, entry: EntryNumber) {
        self.event(key, kind, |state, cx| {
            let state = &mut state.state;
            let owners = state.holding_owners().chain(state.asking_owner());
            if let Some(owner) = named(owners, entry) {
                state.contended(&owner, cx);
            }
        });
    }

    fn reconnected(self: Arc<Self>, key: &LockKey, kind: LockMode, since: Moment) {
        self.event(key, kind, |entry, cx| {
            entry.state.reconnected(since, cx);
        });
    }

    fn disconnected(self: Arc<Self>, key: &LockKey, kind: LockMode, since: Moment) {
        self.event(key, kind, |entry, cx| {
            entry.state.disconnected(since, cx);
        });
    }

    fn held(&self) -> HeldNow {
        let now = self.context.clock.now();
        let mut held = HeldNow::default();
        for mut keys in self.keys.each() {
            let ends = keys.all_mut().flat_map(|entry| entry.state.ends());
            for end in ends.filter(|end| *end > now) {
                let left = end.since(now);
                held.count += 1;
                held.first_ends_in = Some(held.first_ends_in.map_or(left, |first| first.min(left)));
            }
        }
        held
    }
}

/// The owner token that a message names by its entry.
fn named<'a>(
    owners: impl IntoIterator<Item = &'a Arc<Owner>>,
    entry: EntryNumber,
) -> Option<Arc<Owner>> {
    let mut owners = owners.into_iter();
    owners.find(|owner| owner.entry.number() == entry).cloned()
}
