//! Locks inside one process: for development, for tests, and for programs that run once.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use crate::{
    fencing::FencingBlock,
    inspect::{Health, Sighting},
    runtime::{
        clock::{Clock, Moment, wall_clock},
        mutex::Mutex,
    },
    store::{
        Acquire, AcquireOutcome, Acquired, Busy, Contended, Expiry, Failure, Prefetch, Prefetched,
        Release, ReleaseOutcome, Released, Renew, Renewed, Store, StoreFuture, WakeUpMode,
        in_flight::ConnectionId, owner_token::sighting_of,
    },
};

pub(crate) struct MemoryStore {
    clock: Clock,
    state: Mutex<Locks>,
}

#[derive(Default)]
struct Locks {
    entries: HashMap<Arc<str>, HeldLock>,
    /// Expired entries are swept when the map has grown to this size, so it holds at most twice what is alive.
    sweep_at: usize,
    last_token: u64,
}

struct HeldLock {
    token: String,
    expires: Moment,
}

const SMALLEST_SWEEP: usize = 64;

/// Never shows what is locked: the entries hold owner tokens.
impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend").finish_non_exhaustive()
    }
}

impl MemoryStore {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Locks> {
        self.state.lock()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().entries.is_empty()
    }

    fn take(&self, request: &Acquire) -> Acquired {
        request.in_flight.note_sent_on(ConnectionId::LOCAL);
        let now = self.clock.now();
        let mut state = self.lock();
        let token = request.token.expose();
        let outcome = match state.alive(&request.full_key, now) {
            Some(entry) if entry.token != token => AcquireOutcome::Busy(Busy {
                expiry: Expiry::In(entry.expires.since(now)),
                position: None,
                // All possible holders are in the same registry. The remaining case is a lock that is kept for its `min_hold`.
                wake_up: WakeUpMode::Push,
                is_next: true,
                holder: None,
                stamp: None,
            }),
            _ => {
                let tokens = state.take_fencing(request.known_fencing, request.tokens);
                let entry = HeldLock {
                    token: token.to_owned(),
                    expires: now.after(request.ttl),
                };
                state.sweep(now);
                state.entries.insert(request.full_key.clone(), entry);
                AcquireOutcome::Granted(tokens.into())
            }
        };
        drop(state);
        Acquired {
            outcome,
            connection: ConnectionId::LOCAL,
        }
    }

    fn let_go(&self, request: &Release) -> Released {
        request.in_flight.note_sent_on(ConnectionId::LOCAL);
        let now = self.clock.now();
        let mut state = self.lock();
        let outcome = match state.alive(&request.full_key, now) {
            Some(entry) if entry.token == request.token.expose() => {
                match request.keep {
                    Some(keep) => {
                        entry.expires = now.after(keep);
                        // It has no owner any more: a later renewal must not prolong it.
                        entry.token.push('.');
                    }
                    None => drop(state.entries.remove(&request.full_key)),
                }
                ReleaseOutcome::Released
            }
            _ => ReleaseOutcome::NotOurs,
        };
        drop(state);
        Released {
            outcome,
            connection: ConnectionId::LOCAL,
        }
    }

    fn renew_one(&self, request: &Renew) -> Renewed {
        let now = self.clock.now();
        match self.lock().alive(&request.full_key, now) {
            Some(entry) if entry.token == request.token.expose() => {
                entry.expires = entry.expires.max(now.after(request.ttl));
                Renewed::Extended
            }
            _ => Renewed::NotOurs,
        }
    }
}

impl Locks {
    fn alive(&mut self, full_key: &str, now: Moment) -> Option<&mut HeldLock> {
        self.entries
            .get_mut(full_key)
            .filter(|entry| entry.expires > now)
    }

    /// Grows with the wall clock, so that it also grows from one run of the program to the next: a database that outlives the
    /// process accepts the tokens of the next run. As on a server, no more tokens are given out than the clock is ahead.
    fn take_fencing(&mut self, known: u64, count: u32) -> FencingBlock {
        let since_epoch = wall_clock();
        let micros = u64::try_from(since_epoch.as_micros()).unwrap_or(0);
        let counter = self.last_token.max(known);
        let ahead = u32::try_from(micros.saturating_sub(counter)).unwrap_or(u32::MAX);
        let count = count.min(ahead).max(1);
        self.last_token = micros.max(counter + u64::from(count));
        FencingBlock::new(self.last_token + 1 - u64::from(count), count)
    }

    fn sweep(&mut self, now: Moment) {
        if self.entries.len() >= self.sweep_at.max(SMALLEST_SWEEP) {
            self.entries.retain(|_, entry| entry.expires > now);
            self.sweep_at = self.entries.len() * 2;
        }
    }
}

/// Every reply is ready at once.
fn at_once<T: Send + 'static>(answer: T) -> StoreFuture<T> {
    Box::pin(std::future::ready(Ok::<T, Failure>(answer)))
}

impl Store for MemoryStore {
    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        at_once(self.take(&request))
    }

    fn renew(
        &self,
        batch: Vec<Renew>,
        _within: Duration,
    ) -> StoreFuture<Vec<Result<Renewed, Failure>>> {
        at_once(
            batch
                .iter()
                .map(|request| Ok(self.renew_one(request)))
                .collect(),
        )
    }

    fn prefetch(&self, request: Prefetch) -> StoreFuture<Prefetched> {
        let now = self.clock.now();
        let mut state = self.lock();
        let ahead = match state.alive(&request.full_key, now) {
            Some(entry) if entry.token == request.token.expose() => {
                entry.expires = entry.expires.max(now.after(request.ttl));
                Prefetched::Tokens {
                    tokens: state.take_fencing(request.known_fencing, request.tokens),
                    contended: Contended::NoneWaiting,
                }
            }
            _ => Prefetched::NotOurs,
        };
        at_once(ahead)
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        at_once(self.let_go(&request))
    }

    fn inspect(&self, full_key: Arc<str>) -> StoreFuture<Option<Sighting>> {
        let now = self.clock.now();
        let mut state = self.lock();
        let entry = state.alive(&full_key, now);
        at_once(entry.map(|entry| sighting_of(&entry.token, Some(entry.expires.since(now)), 0)))
    }

    fn force_release(&self, full_key: Arc<str>, _known_fencing: u64) -> StoreFuture<()> {
        self.lock().entries.remove(&full_key);
        at_once(())
    }

    fn check(&self, _: u64) -> StoreFuture<Health> {
        at_once(Health {
            round_trip: Duration::ZERO,
            warnings: Vec::new(),
        })
    }

    fn round_trip(&self) -> Duration {
        Duration::ZERO
    }
}
