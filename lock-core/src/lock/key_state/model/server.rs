//! The server of the model, and its requests and replies.

use std::time::Duration;

use crate::{
    fencing::FencingBlock,
    lock::key_state::AcquireAction,
    mode::Mode,
    runtime::clock::Moment,
    store::{
        AcquireOutcome, Busy, Contended, Expiry, Grant, Prefetched, PushedGrant, QueueMode,
        Renewed, WakeUpMode,
    },
};

pub(super) const TTL: Duration = Duration::from_secs(2);

/// The owner token of the other process.
pub(super) const OTHER: u64 = 0;

#[derive(Clone, Debug)]
pub(super) enum Request {
    Acquire(AcquireAction<u64>),
    Confirm(u64),
    Renew(u64, Moment),
    Prefetch(u64),
    Release(u64),
}

#[derive(Clone, Debug)]
pub(super) enum Reply {
    Acquired(u64, Result<AcquireOutcome, Lost>),
    Confirmed(u64, Result<Renewed, Lost>),
    Renewed(u64, Moment, Result<Renewed, Lost>),
    Prefetched(u64, Result<Prefetched, Lost>),
    Pushed(u64, PushedGrant),
    Contended(u64),
}

/// The connection broke before the reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost;

impl Request {
    pub(super) fn owner(&self) -> u64 {
        match self {
            Self::Acquire(acquire) => acquire.owner,
            Self::Confirm(owner)
            | Self::Renew(owner, _)
            | Self::Prefetch(owner)
            | Self::Release(owner) => *owner,
        }
    }

    /// The result if the reply is lost. A release is repeated instead.
    pub(super) fn lost(&self) -> Option<Reply> {
        Some(match self {
            Self::Acquire(acquire) => Reply::Acquired(acquire.owner, Err(Lost)),
            Self::Confirm(owner) => Reply::Confirmed(*owner, Err(Lost)),
            Self::Renew(owner, sent) => Reply::Renewed(*owner, *sent, Err(Lost)),
            Self::Prefetch(owner) => Reply::Prefetched(*owner, Err(Lost)),
            Self::Release(_) => return None,
        })
    }
}

impl Reply {
    pub(super) fn owner(&self) -> u64 {
        match self {
            Self::Acquired(owner, _)
            | Self::Confirmed(owner, _)
            | Self::Renewed(owner, ..)
            | Self::Prefetched(owner, _)
            | Self::Pushed(owner, _)
            | Self::Contended(owner) => *owner,
        }
    }

    /// The result if this reply is lost. A lost message has none.
    pub(super) fn lost(self) -> Option<Self> {
        Some(match self {
            Self::Acquired(owner, _) => Self::Acquired(owner, Err(Lost)),
            Self::Confirmed(owner, _) => Self::Confirmed(owner, Err(Lost)),
            Self::Renewed(owner, sent, _) => Self::Renewed(owner, sent, Err(Lost)),
            Self::Prefetched(owner, _) => Self::Prefetched(owner, Err(Lost)),
            Self::Pushed(..) | Self::Contended(_) => return None,
        })
    }
}

#[derive(Clone, Debug)]
pub(super) struct Server {
    /// The mode in which the tasks of this process take the key. The other process takes it exclusively, or with permits if the
    /// tasks do.
    pub(super) mode: Mode,
    pub(super) holders: Vec<(u64, Moment)>,
    pub(super) queue: Vec<u64>,
    pub(super) counter: u64,
    /// Larger than the stamps of all earlier messages and replies.
    stamp: u64,
    /// The token of the shared phase that runs, or ran last.
    phase: u64,
    was_shared: bool,
}

impl Server {
    pub(super) fn new(mode: Mode) -> Self {
        Self {
            mode,
            holders: Vec::new(),
            queue: Vec::new(),
            counter: 100,
            stamp: 0,
            phase: 0,
            was_shared: false,
        }
    }

    pub(super) fn expire(&mut self, now: Moment) {
        self.holders.retain(|(_, until)| now < *until);
    }

    pub(super) fn has(&self, owner: u64) -> bool {
        self.holders.iter().any(|(holder, _)| *holder == owner)
    }

    pub(super) fn let_go(&mut self, owner: u64) {
        self.holders.retain(|(holder, _)| *holder != owner);
    }

    pub(super) fn is_shared(&self, owner: u64) -> bool {
        self.mode == Mode::Shared && owner != OTHER
    }

    /// Whether this owner may have the lock beside its holders.
    fn admits(&self, owner: u64) -> bool {
        match self.mode {
            Mode::Permits(permits) => self.holders.len() < usize::from(permits),
            Mode::Shared if owner != OTHER => !self.has(OTHER),
            Mode::Exclusive | Mode::Shared => self.holders.is_empty(),
        }
    }

    /// The waiter that is next.
    fn next(&self) -> Option<u64> {
        let of_kind = |shared: bool| {
            let mut queue = self.queue.iter().copied();
            queue.find(|owner| self.is_shared(*owner) == shared)
        };
        let (shared, other) = (of_kind(true), of_kind(false));
        let next = if other.is_some() && (self.was_shared || shared.is_none()) {
            other
        } else {
            shared
        };
        next.filter(|owner| self.admits(*owner))
    }

    /// Whether an exclusive request waits for shared ones to end.
    pub(super) fn is_contended(&self) -> bool {
        self.mode == Mode::Shared && self.queue.contains(&OTHER)
    }

    fn enter(&mut self, owner: u64, tokens: FencingBlock, now: Moment) -> Grant {
        self.queue.retain(|one| *one != owner);
        let tokens = if self.is_shared(owner) && !self.holders.is_empty() {
            FencingBlock::new(self.phase, 1)
        } else {
            tokens
        };
        self.was_shared = self.is_shared(owner);
        self.phase = tokens.last().into();
        self.holders.push((owner, now.after(TTL)));
        Grant {
            is_contended: self.is_contended(),
            ..tokens.into()
        }
    }

    fn stamp(&mut self) -> u64 {
        self.stamp += 1;
        if self.mode == Mode::Shared {
            self.stamp
        } else {
            self.counter
        }
    }

    /// Grants the lock to the waiters in the queue that are next, and tells their process.
    pub(super) fn grant(&mut self, now: Moment) -> Vec<Reply> {
        let mut told = Vec::new();
        while let Some(next) = self.next() {
            let tokens = self.take_tokens(0, 1);
            let grant = self.enter(next, tokens, now);
            let stamp = self.stamp();
            let pushed = PushedGrant { grant, stamp };
            told.extend((next != OTHER).then_some(Reply::Pushed(next, pushed)));
        }
        told
    }

    /// Tells the holders of a share that an exclusive request waits.
    pub(super) fn tell_contended(&self) -> Vec<Reply> {
        let holders = self.holders.iter().map(|(owner, _)| *owner);
        let shared = holders.filter(|owner| self.is_contended() && *owner != OTHER);
        shared.map(Reply::Contended).collect()
    }

    /// Executes a request. Returns what the server sends, in order. `known`: the largest fencing token that the process knows.
    pub(super) fn execute(&mut self, request: &Request, known: u64, now: Moment) -> Vec<Reply> {
        let mut sent = Vec::new();
        match request {
            Request::Acquire(acquire) => {
                let owner = acquire.owner;
                if self.queue.first().is_some_and(|first| *first != owner) {
                    sent.extend(self.grant(now));
                }
                sent.push(Reply::Acquired(owner, Ok(self.acquire(acquire, now))));
            }
            Request::Confirm(owner) => {
                sent.push(Reply::Confirmed(*owner, Ok(self.renew(*owner, now))));
            }
            Request::Renew(owner, at) => {
                sent.push(Reply::Renewed(*owner, *at, Ok(self.renew(*owner, now))));
            }
            Request::Prefetch(owner) => {
                let prefetched = match self.renew(*owner, now) {
                    Renewed::NotOurs => Prefetched::NotOurs,
                    Renewed::Extended | Renewed::ExtendedAndContended => Prefetched::Tokens {
                        tokens: self.take_tokens(known, 2),
                        contended: if self.queue.is_empty() {
                            Contended::NoneWaiting
                        } else {
                            Contended::OthersQueued
                        },
                    },
                };
                sent.push(Reply::Prefetched(*owner, Ok(prefetched)));
            }
            Request::Release(owner) => {
                self.queue.retain(|one| one != owner);
                self.let_go(*owner);
                sent.extend(self.grant(now));
            }
        }
        sent
    }

    fn acquire(&mut self, acquire: &AcquireAction<u64>, now: Moment) -> AcquireOutcome {
        let owner = acquire.owner;
        if self.has(owner) {
            self.queue.retain(|one| *one != owner);
            self.renew(owner, now);
            let tokens = if self.is_shared(owner) {
                FencingBlock::new(self.phase, 1)
            } else {
                self.take_tokens(acquire.known_fencing, acquire.tokens.min(3))
            };
            return AcquireOutcome::Granted(Grant {
                is_contended: self.is_contended(),
                ..tokens.into()
            });
        }
        let is_first = self.queue.iter().all(|one| *one == owner) || self.next() == Some(owner);
        if is_first && self.admits(owner) {
            let tokens = self.take_tokens(acquire.known_fencing, acquire.tokens.min(3));
            return AcquireOutcome::Granted(self.enter(owner, tokens, now));
        }
        let is_queued = self.queue.contains(&owner);
        if acquire.queue_mode != QueueMode::DoNotQueue && !is_queued {
            self.queue.push(owner);
        }
        let ends = self.holders.iter().map(|(_, at)| *at).max();
        let left = ends.map_or(Duration::ZERO, |at| at.since(now));
        let is_check = matches!(acquire.queue_mode, QueueMode::CheckPosition(_));
        AcquireOutcome::Busy(Busy {
            expiry: if is_check {
                Expiry::In(left)
            } else {
                Expiry::Unknown
            },
            position: None,
            wake_up: if acquire.queue_mode == QueueMode::DoNotQueue {
                WakeUpMode::Poll
            } else {
                WakeUpMode::Push
            },
            is_next: !is_check || self.queue.first() == Some(&owner),
            stamp: is_check.then(|| self.stamp()),
            holder: None,
        })
    }

    fn renew(&mut self, owner: u64, now: Moment) -> Renewed {
        let is_contended = self.is_contended();
        let mut holders = self.holders.iter_mut();
        match holders.find(|(holder, _)| *holder == owner) {
            Some((_, at)) => {
                *at = (*at).max(now.after(TTL));
                if is_contended {
                    Renewed::ExtendedAndContended
                } else {
                    Renewed::Extended
                }
            }
            None => Renewed::NotOurs,
        }
    }

    fn take_tokens(&mut self, known: u64, count: u32) -> FencingBlock {
        let first = self.counter.max(known) + 1;
        self.counter = first + u64::from(count) - 1;
        FencingBlock::new(first, count)
    }

    /// The private fields that a comparison of states needs.
    pub(super) fn phase(&self) -> (u64, bool) {
        (self.phase, self.was_shared)
    }
}
