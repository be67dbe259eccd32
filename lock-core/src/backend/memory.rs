//! Locks inside one process: for development, for tests, and for programs that run once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    backend::{
        AcquireOutcome, AcquireRequest, Acquired, Answer, Backend, Failure, ReleaseOutcome,
        ReleaseRequest, Released, RenewRequest, Renewed,
    },
    clock::{Clock, Moment},
    inspect::{Health, Sighting},
    token::FencingToken,
    trail::ConnectionId,
};

#[derive(Debug)]
pub(crate) struct MemoryBackend {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Arc<str>, Entry>,
    /// Expired entries are swept when the map has grown to this size, so it holds at most twice what is alive.
    sweep_at: usize,
    last_token: u64,
}

#[derive(Debug)]
struct Entry {
    token: String,
    expires: Moment,
}

const SMALLEST_SWEEP: usize = 64;

impl MemoryBackend {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew_one(&self, request: &RenewRequest) -> Renewed {
        let now = self.clock.now();
        match self.lock().alive(&request.full_key, now) {
            Some(entry) if entry.token == request.token.expose() => {
                entry.expires = entry.expires.max(now.after(request.ttl));
                Renewed::Yes
            }
            _ => Renewed::NotOurs,
        }
    }
}

impl State {
    fn alive(&mut self, full_key: &str, now: Moment) -> Option<&mut Entry> {
        self.entries
            .get_mut(full_key)
            .filter(|entry| entry.expires > now)
    }

    /// Grows with the wall clock, so that it also grows from one run of the program to the next: a database that
    /// outlives the process accepts the tokens of the next one.
    fn next_token(&mut self, floor: u64) -> FencingToken {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let micros = u64::try_from(since_epoch.as_micros()).unwrap_or(0);
        self.last_token = micros.max(self.last_token + 1).max(floor + 1);
        FencingToken::new(self.last_token)
    }

    fn sweep(&mut self, now: Moment) {
        if self.entries.len() >= self.sweep_at.max(SMALLEST_SWEEP) {
            self.entries.retain(|_, entry| entry.expires > now);
            self.sweep_at = self.entries.len() * 2;
        }
    }
}

/// Everything is answered at once.
fn at_once<T: Send + 'static>(answer: T) -> Answer<T> {
    Box::pin(std::future::ready(Ok::<T, Failure>(answer)))
}

impl Backend for MemoryBackend {
    fn acquire(&self, request: AcquireRequest) -> Answer<Acquired> {
        request.trail.departs_on(ConnectionId::LOCAL);
        let now = self.clock.now();
        let mut state = self.lock();
        let token = request.token.expose();
        let outcome = match state.alive(&request.full_key, now) {
            Some(entry) if entry.token != token => AcquireOutcome::Busy {
                remaining: Some(entry.expires.since(now)),
            },
            _ => {
                let fencing = state.next_token(request.floor);
                let entry = Entry {
                    token: token.to_owned(),
                    expires: now.after(request.ttl),
                };
                state.sweep(now);
                state.entries.insert(request.full_key.clone(), entry);
                AcquireOutcome::Granted(fencing)
            }
        };
        drop(state);
        at_once(Acquired {
            outcome,
            connection: ConnectionId::LOCAL,
        })
    }

    fn renew(
        &self,
        batch: Vec<RenewRequest>,
        _within: Duration,
    ) -> Answer<Vec<Result<Renewed, Failure>>> {
        at_once(
            batch
                .iter()
                .map(|request| Ok(self.renew_one(request)))
                .collect(),
        )
    }

    fn release(&self, request: ReleaseRequest) -> Answer<Released> {
        let now = self.clock.now();
        let mut state = self.lock();
        let outcome = match state.alive(&request.full_key, now) {
            Some(entry) if entry.token == request.token.expose() => {
                match request.keep {
                    Some(keep) => entry.expires = now.after(keep),
                    None => drop(state.entries.remove(&request.full_key)),
                }
                ReleaseOutcome::Done
            }
            _ => ReleaseOutcome::NotOurs,
        };
        drop(state);
        at_once(Released {
            outcome,
            connection: ConnectionId::LOCAL,
        })
    }

    fn inspect(&self, full_key: Arc<str>) -> Answer<Option<Sighting>> {
        let now = self.clock.now();
        let mut state = self.lock();
        let entry = state.alive(&full_key, now);
        at_once(entry.map(|entry| Sighting::new(&entry.token, Some(entry.expires.since(now)))))
    }

    fn force_release(&self, full_key: Arc<str>) -> Answer<()> {
        self.lock().entries.remove(&full_key);
        at_once(())
    }

    fn check(&self) -> Answer<Health> {
        at_once(Health {
            round_trip: Duration::ZERO,
            warnings: Vec::new(),
        })
    }

    fn round_trip(&self) -> Duration {
        Duration::ZERO
    }
}
