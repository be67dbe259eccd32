//! What an arbiter knows of one key: who stands in line, who has it, and what the backend said last.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::sync::Notify;

use crate::{
    error::LockError,
    fencing::{FencingBlock, FencingToken},
    key::LockKey,
    lock::{
        hand_off::Batch,
        held::{lease_state::LeaseState, server_lease::Tenure},
        wait_queue::{Line, Waiter},
    },
    runtime::clock::Moment,
};

#[derive(Default)]
pub(crate) struct Slots {
    pub(crate) keys: HashMap<LockKey, Slot>,
    /// After a shutdown nobody may stand in line any more.
    pub(crate) closed: bool,
}

pub(crate) struct Slot {
    pub(crate) line: Line,
    pub(crate) seat: Seat,
    pub(crate) last_word: Option<LastWord>,
}

pub(crate) enum Seat {
    /// The seeker ended without a word, with the runtime it ran on. Any waiter that is polled starts another.
    Vacant,
    /// A seeker asks the backend; the signal tells it that its line may be empty.
    Seeking(Arc<Notify>),
    /// A task of this process holds the lease.
    Held(Turn),
}

/// Who has a key now, and how it may go on inside this process.
pub(crate) struct Turn {
    pub(crate) lease: Arc<LeaseState>,
    pub(crate) waiter: Arc<Waiter>,
    /// Fencing tokens for the next holders: what is left of one block, and the next one, which is larger throughout.
    pub(crate) tokens: FencingBlock,
    pub(crate) next_tokens: FencingBlock,
    pub(crate) batch: Batch,
    /// Whether a question for tokens and news is on its way.
    pub(crate) asking: bool,
    /// Whether nobody has it until that is answered: its last holder has let go, and the next one waits for a token.
    pub(crate) between: bool,
}

/// What becomes of a key whose lease was let go.
pub(crate) enum Next {
    /// The next task has it, or will as soon as the fencing tokens are there that were asked for.
    HasIt,
    /// It goes back to the server, and this seeker asks for it again.
    Seeks(Arc<Notify>),
    /// It goes back to the server.
    Nobody,
}

/// What the backend said last, for those who stop waiting before it says more.
#[derive(Clone)]
pub(crate) enum LastWord {
    /// Busy until then, unless it is renewed or released; `None`: without an expiry.
    Busy(Option<Moment>),
    Failed(LockError),
}

impl LastWord {
    pub(crate) fn error(&self, key: &LockKey, now: Moment) -> LockError {
        match self {
            Self::Busy(until) => LockError::Busy {
                key: key.clone(),
                retry_after: until.map(|until| until.since(now)),
            },
            Self::Failed(error) => error.clone().about(key),
        }
    }
}

impl Turn {
    pub(crate) fn take_fencing(&mut self) -> Option<FencingToken> {
        if self.tokens.left() == 0 {
            self.tokens = std::mem::replace(&mut self.next_tokens, FencingBlock::EMPTY);
        }
        self.tokens.take()
    }

    /// Whether there is room for another block.
    pub(crate) fn is_short_of_tokens(&self) -> bool {
        self.next_tokens.left() == 0
    }
}

impl Slots {
    /// Who has the key of this tenure, if the tenure still has it.
    pub(crate) fn turn_of(&mut self, tenure: &Tenure) -> Option<&mut Turn> {
        match &mut self.keys.get_mut(&tenure.key)?.seat {
            Seat::Held(turn) if std::ptr::eq(&raw const *turn.lease.tenure, tenure) => Some(turn),
            _ => None,
        }
    }

    /// The same, if it is this very lease that has it.
    pub(crate) fn turn_of_lease(&mut self, lease: &LeaseState) -> Option<&mut Turn> {
        self.turn_of(&lease.tenure)
            .filter(|turn| std::ptr::eq(&raw const *turn.lease, lease))
    }

    /// The key goes back to the server: for a new seeker, or for nobody, and then the slot is gone.
    pub(crate) fn give_back(&mut self, key: &LockKey) -> Next {
        let Some(slot) = self.keys.get_mut(key) else {
            return Next::Nobody;
        };
        if slot.line.head().is_some() {
            return Next::Seeks(slot.seek());
        }
        self.keys.remove(key);
        Next::Nobody
    }
}

impl Slot {
    /// Whether somebody holds the lock or stands in line. A seeker alone, whose tasks went away, is nobody.
    pub(crate) fn is_taken(&mut self) -> bool {
        matches!(self.seat, Seat::Held(_)) || self.line.head().is_some()
    }

    /// What a task hears that will not wait.
    pub(crate) fn verdict(&self, key: &LockKey, ttl: Duration, now: Moment) -> LockError {
        match (&self.seat, &self.last_word) {
            (Seat::Held(turn), _) => LockError::Busy {
                key: key.clone(),
                retry_after: Some(turn.lease.deadline().since(now)),
            },
            (_, Some(word)) => word.error(key, now),
            // The first answer is still on its way, but somebody stands before.
            (_, None) => LockError::Busy {
                key: key.clone(),
                retry_after: Some(ttl),
            },
        }
    }

    pub(crate) fn seek(&mut self) -> Arc<Notify> {
        let signal = Arc::new(Notify::new());
        self.seat = Seat::Seeking(signal.clone());
        self.last_word = None;
        signal
    }

    pub(crate) fn rouse_seeker(&self) {
        if let Seat::Seeking(signal) = &self.seat {
            signal.notify_one();
        }
    }
}
