//! What the state machine of a key has made by the manager.

use std::{sync::Arc, task::Waker, time::Duration};

use crate::{
    key::LockKey,
    lock::{
        context::Context,
        key_state::{Host, NewLease},
        lease_state::LeaseState,
    },
    mode::Mode,
    runtime::jitter::jittered,
    store::owner::Owner,
};

pub(super) struct OfKey<'a> {
    pub(super) context: &'a Arc<Context>,
    pub(super) prefix: &'a str,
    pub(super) key: &'a LockKey,
}

impl Host<Waker, Arc<LeaseState>, Arc<Owner>> for OfKey<'_> {
    fn new_owner(&self, mode: Mode) -> Arc<Owner> {
        let full_key = self.key.behind(self.prefix);
        let clock = self.context.store.clock_of(&full_key);
        let grants = &self.context.grants;
        Arc::new(Owner::new(
            self.context.owner_tokens.next(grants.owners.scheme()),
            &grants.owners,
            mode,
            self.key,
            full_key,
            clock,
        ))
    }

    fn new_lease(&self, taken: NewLease<'_, Arc<Owner>>) -> Arc<LeaseState> {
        Arc::new(LeaseState::new(self.context, self.key, &taken))
    }

    fn known_fencing(&self, owner: &Arc<Owner>) -> u64 {
        self.context.known_tokens.of(owner.clock)
    }

    fn jitter(&self, span: Duration) -> Duration {
        jittered(span)
    }
}
