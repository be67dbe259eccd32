//! What the registry knows of one key: who stands in line, who has it, and what the backend said last.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::sync::Notify;

use crate::{
    error::LockError,
    fencing::{FencingBlock, FencingToken},
    key::LockKey,
    lock::{
        hand_off::Batch,
        held::{lease_state::LeaseState, server_lease::ServerLease},
        wait_queue::{WaitQueue, Waiter},
    },
    runtime::clock::Moment,
};

#[derive(Default)]
pub(crate) struct KeyStates {
    pub(crate) keys: HashMap<LockKey, KeyState>,
    /// After a shutdown nobody may stand in line any more.
    pub(crate) closed: bool,
}

pub(crate) struct KeyState {
    pub(crate) queue: WaitQueue,
    pub(crate) phase: Phase,
    pub(crate) last_reply: Option<LastReply>,
}

pub(crate) enum Phase {
    /// The acquire loop ended without a word, with the runtime it ran on. Any waiter that is polled starts another.
    Orphaned,
    /// An acquire loop asks the backend; the signal tells it that its line may be empty.
    Acquiring(Arc<Notify>),
    /// A task of this process holds the lease.
    Held(LocalHold),
}

/// Who has a key now, and how it may go on inside this process.
pub(crate) struct LocalHold {
    pub(crate) lease: Arc<LeaseState>,
    pub(crate) waiter: Arc<Waiter>,
    /// Fencing tokens for the next holders: what is left of one block, and the next one, which is larger throughout.
    pub(crate) tokens: FencingBlock,
    pub(crate) next_tokens: FencingBlock,
    pub(crate) batch: Batch,
    /// Whether a question for tokens and news is on its way.
    pub(crate) prefetching: bool,
    /// Whether nobody has it until that is answered: its last holder has let go, and the next one waits for a token.
    pub(crate) between_tasks: bool,
}

/// What becomes of a key whose lease was let go.
pub(crate) enum AfterRelease {
    /// The next task has it, or will as soon as the fencing tokens are there that were asked for.
    NextTask,
    /// It goes back to the server, and this acquire loop asks for it again.
    AcquireAgain(Arc<Notify>),
    /// It goes back to the server.
    NoWaiter,
}

/// What the backend said last, for those who stop waiting before it says more.
#[derive(Clone)]
pub(crate) enum LastReply {
    /// Busy until then, unless it is renewed or released; `None`: without an expiry.
    Busy(Option<Moment>),
    Failed(LockError),
}

impl LastReply {
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

impl LocalHold {
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

impl KeyStates {
    /// Who has the key of this server lease, if the server lease still has it.
    pub(crate) fn hold_of(&mut self, server_lease: &ServerLease) -> Option<&mut LocalHold> {
        match &mut self.keys.get_mut(&server_lease.key)?.phase {
            Phase::Held(hold)
                if std::ptr::eq(&raw const *hold.lease.server_lease, server_lease) =>
            {
                Some(hold)
            }
            _ => None,
        }
    }

    /// The same, if it is this very lease that has it.
    pub(crate) fn hold_of_lease(&mut self, lease: &LeaseState) -> Option<&mut LocalHold> {
        self.hold_of(&lease.server_lease)
            .filter(|hold| std::ptr::eq(&raw const *hold.lease, lease))
    }

    /// The key goes back to the server: for a new acquire loop, or for nobody, and then the slot is gone.
    pub(crate) fn give_back(&mut self, key: &LockKey) -> AfterRelease {
        let Some(state) = self.keys.get_mut(key) else {
            return AfterRelease::NoWaiter;
        };
        if state.queue.head().is_some() {
            return AfterRelease::AcquireAgain(state.begin_acquiring());
        }
        self.keys.remove(key);
        AfterRelease::NoWaiter
    }
}

impl KeyState {
    /// Whether somebody holds the lock or stands in line. An acquire loop alone, whose tasks went away, is nobody.
    pub(crate) fn is_taken(&mut self) -> bool {
        matches!(self.phase, Phase::Held(_)) || self.queue.head().is_some()
    }

    /// What a task hears that will not wait.
    pub(crate) fn busy_error(&self, key: &LockKey, ttl: Duration, now: Moment) -> LockError {
        match (&self.phase, &self.last_reply) {
            (Phase::Held(hold), _) => LockError::Busy {
                key: key.clone(),
                retry_after: Some(hold.lease.deadline().since(now)),
            },
            (_, Some(reply)) => reply.error(key, now),
            // The first answer is still on its way, but somebody stands before.
            (_, None) => LockError::Busy {
                key: key.clone(),
                retry_after: Some(ttl),
            },
        }
    }

    pub(crate) fn begin_acquiring(&mut self) -> Arc<Notify> {
        let signal = Arc::new(Notify::new());
        self.phase = Phase::Acquiring(signal.clone());
        self.last_reply = None;
        signal
    }

    pub(crate) fn wake_acquire_loop(&self) {
        if let Phase::Acquiring(signal) = &self.phase {
            signal.notify_one();
        }
    }
}
