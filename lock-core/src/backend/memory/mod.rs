//! Locks inside one process: for development, for tests, and for programs that run once.
//!
//! `lock_table.rs` decides which of the requests of this process hold a key. This file holds the map of all keys,
//! reads the clock for the tables, and notifies entries of their grants.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use crate::{
    backend::{
        Acquire, Answered, Backend, Operate, Page, PagePosition, Release, Renew, Reply, Traits,
        at_once,
        grants::Grants,
        in_flight::Order,
        memory::lock_table::{LockTable, TableUpdate},
        owner::EntryNumber,
    },
    engine::reply::{AcquireOutcome, Notice, ReleaseOutcome, Renewed},
    failure::Failure,
    fencing::KnownTokens,
    inspect::{Health, NAMED, Sighting},
    moment::Moment,
    runtime::{
        clock::{Clock, wall_clock},
        mutex::Mutex,
    },
};

pub(crate) mod lock_table;

pub(crate) struct MemoryBackend {
    clock: Clock,
    grants: Arc<Grants>,
    locks: Mutex<Locks>,
}

struct Locks {
    tables: HashMap<Arc<str>, LockTable>,
    /// Expired entries are swept when the map has grown to this size, so it holds at most twice as many entries as are alive.
    sweep_at: usize,
    last_token: u64,
}

const SMALLEST_SWEEP: usize = 64;

/// Never shows the contents, because the entries hold owner tokens.
impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend").finish_non_exhaustive()
    }
}

impl MemoryBackend {
    pub(crate) fn new(clock: Clock, grants: Arc<Grants>) -> Self {
        Self {
            clock,
            grants,
            locks: Mutex::new(Locks {
                tables: HashMap::new(),
                sweep_at: SMALLEST_SWEEP,
                last_token: 0,
            }),
        }
    }

    /// Takes the key from its holders. With `elsewhere_until`, a holder elsewhere has it until then. Admits no waiter.
    #[cfg(feature = "testing")]
    pub(crate) fn evict(&self, full_key: &Arc<str>, elsewhere_until: Option<Moment>) {
        self.update(full_key, 0, |table, _| table.evict(elsewhere_until));
    }

    /// Admits the waiters that may enter now.
    #[cfg(feature = "testing")]
    pub(crate) fn serve(&self, full_key: &Arc<str>) {
        self.update(full_key, 0, LockTable::serve);
    }

    pub(crate) fn forget_result(&self, full_key: &Arc<str>) {
        self.update(full_key, 0, |table, _| table.result = None);
    }

    /// Returns how much longer the result of a run is kept, if there is one.
    #[cfg(feature = "testing")]
    pub(crate) fn result_kept_for(&self, full_key: &str) -> Option<Duration> {
        let locks = self.locks.lock();
        locks.tables.get(full_key)?.kept_for(self.clock.now())
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.locks.lock().tables.is_empty()
    }

    fn try_acquire(&self, request: &Acquire) -> Result<Answered<AcquireOutcome>, Failure> {
        let in_flight = &request.owner.in_flight;
        in_flight.note_sent_on(Order::LOCAL);
        let known = request.known_fencing;
        let outcome = self.update(&request.owner.full_key, known, |table, update| {
            table.acquire(request, update)
        });
        if outcome.is_err() {
            // The request was not executed, and each earlier one has its reply.
            in_flight.note_all_answered();
        }
        Ok(Answered {
            outcome: outcome?,
            order: Some(Order::LOCAL),
        })
    }

    /// Makes one operation on the table of a key, and delivers its notices. An empty table is not kept.
    fn update<T>(
        &self,
        full_key: &Arc<str>,
        known_fencing: u64,
        operation: impl FnOnce(&mut LockTable, &mut TableUpdate<'_>) -> T,
    ) -> T {
        let now = self.clock.now();
        // Called with the mutex of the tables locked. This cannot deadlock, because code with the mutex of the owners locks no
        // other one.
        let is_alive = |number| self.grants.owners.is_alive(number);
        let mut locks = self.locks.lock();
        locks.sweep(now, &is_alive);
        let Locks {
            tables, last_token, ..
        } = &mut *locks;
        let mut update = TableUpdate {
            now,
            known_fencing,
            wall_clock,
            last_token,
            is_alive: &is_alive,
            notices: Vec::new(),
        };
        let table = tables.entry(full_key.clone()).or_default();
        let result = operation(table, &mut update);
        if table.is_empty() {
            tables.remove(full_key);
        }
        let notices = update.notices;
        drop(locks);
        self.deliver(notices, now);
        result
    }

    /// Notifies entries by calls into their state machines. No mutex is locked: the registry carries out its actions without
    /// holding its own, and a request is executed before its future is polled. A notice that arrives before its request has read
    /// the reply is kept until then, as a message from a server would be, and is recognised by its stamp.
    ///
    /// A notified state may make requests within this call. The chain of such requests is finite. A grant removes an entry from
    /// the queue, and a state with a waiter keeps the lock. A state without a waiter releases it, and acquires again only when a
    /// task polls. If the first waiter asks for another ttl or number of permits, the state releases the lock and acquires it
    /// again once, with the values that this waiter wants. A share that learns that it is contended is closed, once. So a chain
    /// has at most two grants for each of the four states of the key, and one release for each share. An entry that is notified
    /// of a result is no longer in the queue, and its request is answered with the result.
    fn deliver(&self, notices: Vec<(EntryNumber, Notice)>, now: Moment) {
        for (number, notice) in notices {
            self.grants.notify_entry(number, notice, now);
        }
    }
}

impl Locks {
    fn sweep(&mut self, now: Moment, is_alive: &dyn Fn(EntryNumber) -> bool) {
        if self.tables.len() >= self.sweep_at {
            self.tables.retain(|_, table| {
                table.sweep(now, is_alive);
                !table.is_empty()
            });
            self.sweep_at = SMALLEST_SWEEP.max(self.tables.len() * 2);
        }
    }
}

impl Backend for MemoryBackend {
    fn acquire(&self, request: Acquire) -> Reply<Answered<AcquireOutcome>> {
        at_once(self.try_acquire(&request))
    }

    fn renew(&self, batch: Vec<Renew>, _within: Duration) -> Reply<Vec<Result<Renewed, Failure>>> {
        let renewed = batch.iter().map(|request| {
            let known = request.known_fencing;
            Ok(
                self.update(&request.owner.full_key, known, |table, update| {
                    table.renew(request, update)
                }),
            )
        });
        at_once(Ok(renewed.collect()))
    }

    fn release(&self, request: Release) -> Reply<Answered<ReleaseOutcome>> {
        request.owner.released_on.note_sent_on(Order::LOCAL);
        let known = request.known_fencing;
        let outcome = self.update(&request.owner.full_key, known, |table, update| {
            table.release(&request, update)
        });
        at_once(Ok(Answered {
            outcome,
            order: Some(Order::LOCAL),
        }))
    }

    fn traits(&self) -> Traits {
        Traits::default()
    }
}

impl Operate for MemoryBackend {
    fn inspect(&self, full_key: Arc<str>) -> Reply<Option<Sighting>> {
        let now = self.clock.now();
        let locks = self.locks.lock();
        let table = locks.tables.get(&full_key);
        at_once(Ok(table.and_then(|table| table.inspect(now, NAMED))))
    }

    fn list(&self, full_prefix: Arc<str>, _: PagePosition) -> Reply<Page> {
        let now = self.clock.now();
        let locks = self.locks.lock();
        let named = locks.tables.iter();
        let named = named.filter(|(key, _)| key.starts_with(&*full_prefix));
        let held = named.filter_map(|(key, table)| Some((key.to_string(), table.inspect(now, 0)?)));
        // All locks are in one page, since the map has no order in which a second page could continue.
        at_once(Ok(Page {
            locks: held.collect(),
            next: None,
        }))
    }

    fn forget(&self, full_key: Arc<str>) -> Reply<()> {
        self.forget_result(&full_key);
        at_once(Ok(()))
    }

    fn force_release(&self, full_key: Arc<str>, known_fencing: u64) -> Reply<()> {
        self.update(&full_key, known_fencing, LockTable::force_release);
        at_once(Ok(()))
    }

    fn check(&self, _: Arc<KnownTokens>) -> Reply<Health> {
        at_once(Ok(Health {
            servers: Vec::new(),
            round_trip: Duration::ZERO,
            warnings: Vec::new(),
        }))
    }
}
