//! One owner token, and the records kept beside it as long as a request or a lease has it.

use std::{sync::Arc, time::Duration};

use crate::{
    mode::Mode,
    store::{
        Renew,
        grants::{Grants, QueueEntry},
        in_flight::InFlight,
        known_tokens::ClockIndex,
        outcomes::{Acquired, Failure},
        owner_token::{OwnerToken, OwnerTokens},
    },
};

pub(crate) struct Owner {
    pub(crate) full_key: Arc<str>,
    /// The fencing clock of the key.
    pub(crate) clock: ClockIndex,
    pub(crate) mode: Mode,
    pub(crate) token: OwnerToken,
    /// Assigns a message to the request.
    pub(crate) entry: QueueEntry,
    pub(crate) in_flight: Arc<InFlight>,
}

impl Owner {
    pub(crate) fn new(
        tokens: &OwnerTokens,
        grants: &Arc<Grants>,
        mode: Mode,
        full_key: Arc<str>,
        clock: ClockIndex,
    ) -> Self {
        let token = tokens.next(grants.scheme());
        Self {
            full_key,
            clock,
            mode,
            entry: grants.entry(mode),
            token,
            in_flight: Arc::default(),
        }
    }

    /// Notes what the reply to an acquire says of its copies. Returns whether all of them were executed or never will be.
    pub(crate) fn note_reply(&self, result: &Result<Acquired, Failure>) -> bool {
        let is_settled =
            matches!(result, Ok(acquired) if self.in_flight.is_settled_by(acquired.connection));
        if is_settled {
            self.in_flight.note_all_answered();
        }
        is_settled
    }

    pub(crate) fn renew_request(&self, ttl: Duration) -> Renew {
        Renew {
            full_key: self.full_key.clone(),
            token: self.token.clone(),
            ttl,
            known_fencing: 0,
            tokens: 0,
            entry: self.entry.in_queue(),
            acquire_in_flight: self.in_flight.clone(),
        }
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.entry.number() == other.entry.number()
    }
}
