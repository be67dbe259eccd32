//! The server of the model, and what travels to it and back.

use std::time::Duration;

use crate::{
    fencing::FencingBlock,
    lock::key_state::AcquireAction,
    runtime::clock::Moment,
    store::{AcquireOutcome, Busy, Contended, Expiry, Prefetched, QueueMode, Renewed, WakeUpMode},
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
    Pushed(u64, u64),
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

    /// What is told if its reply is lost. A release is repeated instead.
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
            | Self::Pushed(owner, _) => *owner,
        }
    }

    /// What is told if it is lost itself. A message is not replaced.
    pub(super) fn lost(self) -> Option<Self> {
        Some(match self {
            Self::Acquired(owner, _) => Self::Acquired(owner, Err(Lost)),
            Self::Confirmed(owner, _) => Self::Confirmed(owner, Err(Lost)),
            Self::Renewed(owner, sent, _) => Self::Renewed(owner, sent, Err(Lost)),
            Self::Prefetched(owner, _) => Self::Prefetched(owner, Err(Lost)),
            Self::Pushed(..) => return None,
        })
    }
}

#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) holder: Option<(u64, Moment)>,
    pub(super) queue: Vec<u64>,
    pub(super) counter: u64,
}

impl Server {
    pub(super) fn expire(&mut self, now: Moment) {
        self.holder = self.holder.filter(|(_, until)| now < *until);
    }

    /// Grants a free lock to the first one in the queue, and tells its process.
    pub(super) fn grant(&mut self, now: Moment) -> Option<Reply> {
        if self.holder.is_some() || self.queue.is_empty() {
            return None;
        }
        let first = self.queue.remove(0);
        self.counter += 1;
        self.holder = Some((first, now.after(TTL)));
        (first != OTHER).then_some(Reply::Pushed(first, self.counter))
    }

    /// Executes a request: what it sends, in its order. `known`: the largest fencing token that the process knows.
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
                    Renewed::Extended => Prefetched::Tokens {
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
                if self.holder.is_some_and(|(holder, _)| holder == *owner) {
                    self.holder = None;
                }
                sent.extend(self.grant(now));
            }
        }
        sent
    }

    fn acquire(&mut self, acquire: &AcquireAction<u64>, now: Moment) -> AcquireOutcome {
        let owner = acquire.owner;
        if self.holder.is_none_or(|(holder, _)| holder == owner) {
            self.queue.retain(|one| *one != owner);
            let until = now.after(TTL);
            let until = self.holder.map_or(until, |(_, at)| at.max(until));
            self.holder = Some((owner, until));
            let tokens = self.take_tokens(acquire.known_fencing, acquire.tokens.min(3));
            return AcquireOutcome::Granted(tokens);
        }
        let is_queued = self.queue.contains(&owner);
        if acquire.queue_mode != QueueMode::DoNotQueue && !is_queued {
            self.queue.push(owner);
        }
        let left = self.holder.map_or(Duration::ZERO, |(_, at)| at.since(now));
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
            counter: is_check.then_some(self.counter),
            holder: None,
        })
    }

    fn renew(&mut self, owner: u64, now: Moment) -> Renewed {
        match &mut self.holder {
            Some((holder, at)) if *holder == owner => {
                *at = (*at).max(now.after(TTL));
                Renewed::Extended
            }
            _ => Renewed::NotOurs,
        }
    }

    fn take_tokens(&mut self, known: u64, count: u32) -> FencingBlock {
        let first = self.counter.max(known) + 1;
        self.counter = first + u64::from(count) - 1;
        FencingBlock::new(first, count)
    }
}
