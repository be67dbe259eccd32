//! The server of the model, and its requests and replies.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{
        Acquire, Release, Renew, RunResult,
        memory::lock_table::{EntryHolder, LockTable, TableUpdate},
        owner::{Entry, Owner},
    },
    engine::{
        reply::{
            AcquireOutcome, Busy, Expiry, Notice, PushedGrant, QueueMode, Renewed, WakeUpMode,
        },
        transition::AcquireAction,
    },
    mode::Mode,
    moment::Moment,
};

pub(super) const TTL: Duration = Duration::from_secs(2);

/// The ttl of the second task in scenarios with two ttls.
pub(super) const OTHER_TTL: Duration = Duration::from_secs(3);

/// The owner token of the other process.
pub(super) const OTHER: u64 = 0;

#[derive(Clone, Debug)]
pub(super) enum Request {
    Acquire(AcquireAction<u64>),
    Renew(Renewal, Duration),
    Release(u64, Stores),
}

/// Determines whether a release stores the result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stores {
    Nothing,
    Result,
}

/// A renewal, and the number of fencing tokens that it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renewal {
    pub(super) owner: u64,
    pub(super) sent: Moment,
    pub(super) tokens: u32,
}

/// A request on its way to the server.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) request: Request,
    /// `true` if its reply is awaited. A request that has timed out is still executed in its order, but its reply is
    /// dropped.
    pub(super) is_awaited: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Reply {
    Acquired(u64, Result<AcquireOutcome, NoReply>),
    Renewed(Renewal, Result<Renewed, NoReply>),
    Pushed(u64, PushedGrant),
    Contended(u64),
    /// The body for which this owner token waits has run.
    Done(u64),
}

/// The reason why a request has no outcome.
#[derive(Clone, Copy, Debug)]
pub(super) enum NoReply {
    /// The connection broke before the reply, or the request timed out.
    Lost,
    /// The server refused the request without executing it.
    Refused,
}

impl Request {
    pub(super) fn owner(&self) -> u64 {
        match self {
            Self::Acquire(acquire) => acquire.owner,
            Self::Renew(renewal, _) => renewal.owner,
            Self::Release(owner, _) => *owner,
        }
    }

    /// Returns the reply that stands for a request without an outcome. For a release there is none, since it is repeated.
    pub(super) fn without_outcome(&self, why: NoReply) -> Option<Reply> {
        Some(match self {
            Self::Acquire(acquire) => Reply::Acquired(acquire.owner, Err(why)),
            Self::Renew(renewal, _) => Reply::Renewed(*renewal, Err(why)),
            Self::Release(..) => return None,
        })
    }
}

impl Reply {
    pub(super) fn owner(&self) -> u64 {
        match self {
            Self::Acquired(owner, _)
            | Self::Pushed(owner, _)
            | Self::Contended(owner)
            | Self::Done(owner) => *owner,
            Self::Renewed(renewal, _) => renewal.owner,
        }
    }

    pub(super) fn is_message(&self) -> bool {
        matches!(self, Self::Pushed(..) | Self::Contended(_) | Self::Done(_))
    }

    /// Returns the reply that stands for this one after it was lost. For a message there is none.
    pub(super) fn lost(self) -> Option<Self> {
        Some(match self {
            Self::Acquired(owner, _) => Self::Acquired(owner, Err(NoReply::Lost)),
            Self::Renewed(renewal, _) => Self::Renewed(renewal, Err(NoReply::Lost)),
            Self::Pushed(..) | Self::Contended(_) | Self::Done(_) => return None,
        })
    }
}

/// The real table of locks in memory, with the replies of a server.
#[derive(Clone, Debug)]
pub(super) struct Server {
    /// The mode in which the tasks of this process acquire the key. The other process uses the same mode, except that it
    /// acquires a shared key exclusively.
    mode: Mode,
    pub(super) table: LockTable,
    last_token: u64,
}

impl Server {
    pub(super) fn new(mode: Mode) -> Self {
        Self {
            mode,
            table: LockTable::default(),
            last_token: 0,
        }
    }

    pub(super) fn expire(&mut self, now: Moment) {
        self.table.sweep(now, &|_| true);
        self.forget_if_empty();
    }

    pub(super) fn held(&self, owner: u64) -> Option<&EntryHolder> {
        let mut holders = self.table.holders.iter();
        holders.find(|held| held.number == Some(owner))
    }

    pub(super) fn has(&self, owner: u64) -> bool {
        self.held(owner).is_some()
    }

    pub(super) fn is_queued(&self, owner: u64) -> bool {
        let mut queue = self.table.queue.iter();
        queue.any(|queued| queued.entry.number == owner)
    }

    /// Returns `true` if an exclusive request waits for shared holders to end.
    pub(super) fn is_contended(&self) -> bool {
        self.mode == Mode::Shared && self.is_queued(OTHER)
    }

    /// Returns the last fencing token or stamp. Unlike on a server, a reply does not take a new number as its stamp, since
    /// only the order relative to the stamps of grants matters.
    pub(super) fn last_token(&self) -> u64 {
        self.last_token
    }

    /// Makes the other process acquire the key, or check its entry. Returns the messages that the server sends.
    pub(super) fn acquire_for_other(&mut self, queue_mode: QueueMode, now: Moment) -> Vec<Reply> {
        let (_, messages) = self.acquire(
            &AcquireAction {
                owner: OTHER,
                ttl: TTL,
                tokens: 1,
                queue_mode,
                queued_ttl: None,
                known_fencing: 0,
                polled_by: None,
            },
            now,
        );
        messages
    }

    /// Executes a request. Returns the messages that the server sends, in order. `known` is the largest fencing token that
    /// the process knows.
    pub(super) fn execute(&mut self, request: &Request, known: u64, now: Moment) -> Vec<Reply> {
        let owner = || Owner::of_entry(self.entry(request.owner(), TTL));
        let (reply, mut sent) = match request {
            Request::Acquire(acquire) => self.acquire(acquire, now),
            Request::Renew(renewal, ttl) => {
                let renew = Renew {
                    owner: owner(),
                    ttl: *ttl,
                    known_fencing: known,
                    tokens: renewal.tokens,
                };
                let (renewed, messages) =
                    self.update(known, now, |table, update| table.renew(&renew, update));
                (Some(Reply::Renewed(*renewal, Ok(renewed))), messages)
            }
            Request::Release(_, stores) => {
                let release = Release {
                    owner: owner(),
                    keep: None,
                    // Longer than any scenario lasts.
                    result: (*stores == Stores::Result).then(|| RunResult {
                        bytes: Arc::from(*b"result"),
                        keep: TTL * 100,
                    }),
                    known_fencing: known,
                    may_be_queued: true,
                    valid_until: Moment::NEVER,
                };
                let (_, messages) =
                    self.update(known, now, |table, update| table.release(&release, update));
                (None, messages)
            }
        };
        sent.extend(reply);
        sent
    }

    fn acquire(
        &mut self,
        acquire: &AcquireAction<u64>,
        now: Moment,
    ) -> (Option<Reply>, Vec<Reply>) {
        let owner = acquire.owner;
        let request = Acquire {
            owner: Owner::of_entry(self.entry(owner, acquire.queued_ttl.unwrap_or(acquire.ttl))),
            ttl: acquire.ttl,
            known_fencing: acquire.known_fencing,
            // Enough for the hand-overs of two tasks.
            tokens: acquire.tokens.min(3),
            queue_mode: acquire.queue_mode,
            queued_ttl: None,
            after: None,
        };
        let known = acquire.known_fencing;
        let (outcome, messages) =
            self.update(known, now, |table, update| table.acquire(&request, update));
        let outcome = match outcome.expect("the modes do not conflict") {
            AcquireOutcome::Busy(busy) => AcquireOutcome::Busy(self.as_by_a_script(busy, &request)),
            other => other,
        };
        (Some(Reply::Acquired(owner, Ok(outcome))), messages)
    }

    /// Reduces a reply to that of a script, which reports the last stamp, and whether the entry is first, only in reply to
    /// a check.
    fn as_by_a_script(&self, busy: Busy, request: &Acquire) -> Busy {
        let mut queue = self.table.queue.iter();
        let is_first = queue
            .next()
            .is_some_and(|first| first.entry.number == request.owner.number());
        match request.queue_mode {
            QueueMode::CheckPosition(_) => Busy {
                is_next: is_first,
                ..busy
            },
            QueueMode::JoinQueue => Busy {
                stamp: None,
                ..busy
            },
            QueueMode::DoNotQueue => Busy {
                expiry: Expiry::Unknown,
                stamp: None,
                wake_up: WakeUpMode::Poll,
                ..busy
            },
        }
    }

    fn entry(&self, number: u64, ttl: Duration) -> Entry {
        let mode = match self.mode {
            Mode::Shared if number == OTHER => Mode::Exclusive,
            mode => mode,
        };
        Entry { number, ttl, mode }
    }

    fn update<T>(
        &mut self,
        known_fencing: u64,
        now: Moment,
        operation: impl FnOnce(&mut LockTable, &mut TableUpdate<'_>) -> T,
    ) -> (T, Vec<Reply>) {
        let mut update = TableUpdate {
            now,
            known_fencing,
            wall_clock: || Duration::ZERO,
            last_token: &mut self.last_token,
            is_alive: &|_| true,
            notices: Vec::new(),
        };
        let result = operation(&mut self.table, &mut update);
        let messages = update
            .notices
            .into_iter()
            .map(|(owner, notice)| match notice {
                Notice::Granted(pushed) => Reply::Pushed(owner, pushed),
                Notice::Contended => Reply::Contended(owner),
                Notice::Hint => Reply::Done(owner),
            });
        let messages = messages.filter(|message| message.owner() != OTHER);
        let messages = messages.collect();
        self.forget_if_empty();
        (result, messages)
    }

    /// Removes an empty table, as the backend does.
    fn forget_if_empty(&mut self) {
        if self.table.is_empty() {
            self.table = LockTable::default();
        }
    }
}
