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

/// The ttl of the second task, in the scenarios with two of them.
pub(super) const OTHER_TTL: Duration = Duration::from_secs(3);

/// The owner token of the other process.
pub(super) const OTHER: u64 = 0;

#[derive(Clone, Debug)]
pub(super) enum Request {
    Acquire(AcquireAction<u64>),
    Renew(u64, Duration, Moment),
    Prefetch(u64, Duration),
    Release(u64),
}

/// A request on its way to the server.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) request: Request,
    /// Whether its reply is awaited. A request whose time is over is executed in its order, and its reply is dropped.
    pub(super) is_awaited: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Reply {
    Acquired(u64, Result<AcquireOutcome, NoReply>),
    Renewed(u64, Moment, Result<Renewed, NoReply>),
    Prefetched(u64, Result<Prefetched, NoReply>),
    Pushed(u64, PushedGrant),
    Contended(u64),
}

/// Why a request has no outcome.
#[derive(Clone, Copy, Debug)]
pub(super) enum NoReply {
    /// The connection broke before the reply, or its time was over.
    Lost,
    /// The server refused the request without executing it.
    Refused,
}

impl Request {
    pub(super) fn owner(&self) -> u64 {
        match self {
            Self::Acquire(acquire) => acquire.owner,
            Self::Renew(owner, ..) | Self::Prefetch(owner, _) | Self::Release(owner) => *owner,
        }
    }

    /// The result without an outcome. A release is repeated instead.
    pub(super) fn without_outcome(&self, why: NoReply) -> Option<Reply> {
        Some(match self {
            Self::Acquire(acquire) => Reply::Acquired(acquire.owner, Err(why)),
            Self::Renew(owner, _, sent) => Reply::Renewed(*owner, *sent, Err(why)),
            Self::Prefetch(owner, _) => Reply::Prefetched(*owner, Err(why)),
            Self::Release(_) => return None,
        })
    }
}

impl Reply {
    pub(super) fn owner(&self) -> u64 {
        match self {
            Self::Acquired(owner, _)
            | Self::Renewed(owner, ..)
            | Self::Prefetched(owner, _)
            | Self::Pushed(owner, _)
            | Self::Contended(owner) => *owner,
        }
    }

    pub(super) fn is_message(&self) -> bool {
        matches!(self, Self::Pushed(..) | Self::Contended(_))
    }

    /// The result if this reply is lost. A lost message has none.
    pub(super) fn lost(self) -> Option<Self> {
        Some(match self {
            Self::Acquired(owner, _) => Self::Acquired(owner, Err(NoReply::Lost)),
            Self::Renewed(owner, sent, _) => Self::Renewed(owner, sent, Err(NoReply::Lost)),
            Self::Prefetched(owner, _) => Self::Prefetched(owner, Err(NoReply::Lost)),
            Self::Pushed(..) | Self::Contended(_) => return None,
        })
    }
}

/// A lease on the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) owner: u64,
    pub(super) until: Moment,
    /// The number of its permit, in the mode with permits.
    pub(super) permit: Option<u16>,
    /// The largest fencing token that was given out before it. Its own tokens are larger.
    pub(super) floor: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Server {
    /// The mode in which the tasks of this process take the key. The other process takes it exclusively, or with permits if the
    /// tasks do.
    pub(super) mode: Mode,
    pub(super) holders: Vec<Held>,
    /// The owner tokens that wait, and the ttl that each is to get.
    pub(super) queue: Vec<(u64, Duration)>,
    /// The fencing clock: the last token or stamp. A reply takes no number here, since only the order of its stamp and those of grants
    /// counts.
    pub(super) clock: u64,
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
            clock: 100,
            phase: 0,
            was_shared: false,
        }
    }

    pub(super) fn expire(&mut self, now: Moment) {
        self.holders.retain(|held| now < held.until);
    }

    pub(super) fn held(&self, owner: u64) -> Option<&Held> {
        self.holders.iter().find(|held| held.owner == owner)
    }

    pub(super) fn has(&self, owner: u64) -> bool {
        self.held(owner).is_some()
    }

    pub(super) fn let_go(&mut self, owner: u64) {
        self.holders.retain(|held| held.owner != owner);
    }

    pub(super) fn is_queued(&self, owner: u64) -> bool {
        self.queue.iter().any(|(one, _)| *one == owner)
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
    fn next(&self) -> Option<(u64, Duration)> {
        let of_kind = |shared: bool| {
            let mut queue = self.queue.iter().copied();
            queue.find(|(owner, _)| self.is_shared(*owner) == shared)
        };
        let (shared, other) = (of_kind(true), of_kind(false));
        let next = if other.is_some() && (self.was_shared || shared.is_none()) {
            other
        } else {
            shared
        };
        next.filter(|(owner, _)| self.admits(*owner))
    }

    /// Whether an exclusive request waits for shared ones to end.
    pub(super) fn is_contended(&self) -> bool {
        self.mode == Mode::Shared && self.is_queued(OTHER)
    }

    fn enter(&mut self, owner: u64, ttl: Duration, tokens: FencingBlock, now: Moment) -> Grant {
        self.leave(owner);
        let tokens = if self.is_shared(owner) && !self.holders.is_empty() {
            FencingBlock::new(self.phase, 1)
        } else {
            tokens
        };
        self.was_shared = self.is_shared(owner);
        self.phase = tokens.last().into();
        let is_taken = |permit: &u16| {
            let mut holders = self.holders.iter();
            holders.any(|held| held.permit == Some(*permit))
        };
        let is_seated = matches!(self.mode, Mode::Permits(_));
        let permit = (0..=u16::MAX).find(|permit| !is_taken(permit));
        let permit = permit.filter(|_| is_seated);
        self.holders.push(Held {
            owner,
            until: now.after(ttl),
            permit,
            floor: u64::from(tokens.last()) - u64::from(tokens.left()),
        });
        self.grant_of(tokens, permit)
    }

    fn grant_of(&self, tokens: FencingBlock, permit: Option<u16>) -> Grant {
        Grant {
            is_contended: self.is_contended(),
            permit,
            ..tokens.into()
        }
    }

    fn leave(&mut self, owner: u64) {
        self.queue.retain(|(one, _)| *one != owner);
    }

    /// Grants the lock to the waiters in the queue that are next, and tells their process.
    pub(super) fn grant(&mut self, now: Moment) -> Vec<Reply> {
        let mut told = Vec::new();
        while let Some((next, ttl)) = self.next() {
            let tokens = self.take_tokens(0, 1);
            let grant = self.enter(next, ttl, tokens, now);
            let stamp = match self.mode {
                Mode::Shared => self.take_tokens(0, 1).last().into(),
                Mode::Exclusive | Mode::Permits(_) => self.clock,
            };
            let pushed = PushedGrant { grant, stamp };
            told.extend((next != OTHER).then_some(Reply::Pushed(next, pushed)));
        }
        told
    }

    /// Tells the holders of a share that an exclusive request waits.
    pub(super) fn tell_contended(&self) -> Vec<Reply> {
        let holders = self.holders.iter().map(|held| held.owner);
        let shared = holders.filter(|owner| self.is_contended() && *owner != OTHER);
        shared.map(Reply::Contended).collect()
    }

    /// Executes a request. Returns what the server sends, in order. `known`: the largest fencing token that the process knows.
    pub(super) fn execute(&mut self, request: &Request, known: u64, now: Moment) -> Vec<Reply> {
        let mut sent = Vec::new();
        match request {
            Request::Acquire(acquire) => {
                let owner = acquire.owner;
                if self.queue.first().is_some_and(|(first, _)| *first != owner) {
                    sent.extend(self.grant(now));
                }
                sent.push(Reply::Acquired(owner, Ok(self.acquire(acquire, now))));
            }
            Request::Renew(owner, ttl, at) => {
                let renewed = self.renew(*owner, *ttl, now);
                sent.push(Reply::Renewed(*owner, *at, Ok(renewed)));
            }
            Request::Prefetch(owner, ttl) => {
                let prefetched = match self.renew(*owner, *ttl, now) {
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
                self.leave(*owner);
                self.let_go(*owner);
                sent.extend(self.grant(now));
            }
        }
        sent
    }

    fn acquire(&mut self, acquire: &AcquireAction<u64>, now: Moment) -> AcquireOutcome {
        let owner = acquire.owner;
        if let Some(permit) = self.held(owner).map(|held| held.permit) {
            self.leave(owner);
            self.renew(owner, acquire.ttl, now);
            let tokens = if self.is_shared(owner) {
                FencingBlock::new(self.phase, 1)
            } else {
                self.take_tokens(acquire.known_fencing, acquire.tokens.min(3))
            };
            return AcquireOutcome::Granted(self.grant_of(tokens, permit));
        }
        let is_next = |next: (u64, Duration)| next.0 == owner;
        let is_first =
            self.queue.iter().all(|one| is_next(*one)) || self.next().is_some_and(is_next);
        if is_first && self.admits(owner) {
            let tokens = self.take_tokens(acquire.known_fencing, acquire.tokens.min(3));
            return AcquireOutcome::Granted(self.enter(owner, acquire.ttl, tokens, now));
        }
        if acquire.queue_mode != QueueMode::DoNotQueue && !self.is_queued(owner) {
            let ttl = acquire.queued_ttl.unwrap_or(acquire.ttl);
            self.queue.push((owner, ttl));
        }
        let ends = self.holders.iter().map(|held| held.until).max();
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
            is_next: !is_check || self.queue.first().copied().is_some_and(is_next),
            stamp: is_check.then_some(self.clock),
            holder: None,
        })
    }

    fn renew(&mut self, owner: u64, ttl: Duration, now: Moment) -> Renewed {
        let is_contended = self.is_contended();
        let mut holders = self.holders.iter_mut();
        match holders.find(|held| held.owner == owner) {
            Some(held) => {
                held.until = held.until.max(now.after(ttl));
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
        let first = self.clock.max(known) + 1;
        self.clock = first + u64::from(count) - 1;
        FencingBlock::new(first, count)
    }

    /// The private fields that a comparison of states needs.
    pub(super) fn phase(&self) -> (u64, bool) {
        (self.phase, self.was_shared)
    }
}
