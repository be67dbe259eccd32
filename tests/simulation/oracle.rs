//! Observes the whole world and reports violations: two holders at a time, tokens that do not grow. Further violations are a
//! body that goes on after its lease, and a lock that is free while a waiter waits for it.
//!
//! It observes leases without changing them, and reads the servers' data directly.
//!
//! The `history` of the harness cannot replace it: the history has only what processes recorded of themselves, and must allow
//! for their delays. The oracle observes between any two steps, on one clock, and needs no allowance.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
    time::Duration,
};

use lock_core::{__simulation::certain_for, Lease, LockError};
use lock_tests::Mode;

use crate::{
    locks::Occupied,
    network::{MILLI, Nanos},
    phases::{Phases, Waiting},
    plan::Plan,
    scheduler::{ProcessId, as_seen_by},
    workload::{is_wrong, nanos},
    world::{World, lock},
};

type AttemptId = u64;

pub(crate) struct Oracle {
    world: Arc<World>,
    state: Mutex<State>,
    plan: Arc<Plan>,
    longest_ttl: Nanos,
    pub(crate) idle: Nanos,
    pub(crate) forgotten: Nanos,
    /// Whether the order of readers and writers is checked.
    takes_turns: bool,
}

#[derive(Default)]
struct State {
    keys: BTreeMap<String, Key>,
    last_attempt: AttemptId,
    offences: Vec<String>,
    /// The number of servers, of several, that have lost their data.
    forgetful: usize,
    grants: u64,
    refused_writes: u64,
}

#[derive(Default)]
struct Key {
    holders: BTreeMap<AttemptId, Holder>,
    waiting: BTreeMap<AttemptId, Waiting>,
    phases: Phases,
    /// Attempts that are not over.
    open: BTreeMap<AttemptId, (ProcessId, Mode)>,
    /// Since when some server has the lock for a process that does not want it.
    forgotten_since: Option<Nanos>,
    tokens: BTreeSet<u64>,
    /// The last token of each permit. A store compares those of one permit.
    tokens_of_permits: BTreeMap<u16, u64>,
    /// The tokens that do not belong to a shared phase.
    tokens_of_one: BTreeSet<u64>,
    /// The times in which exclusion was broken on purpose.
    broken: Vec<(Nanos, Nanos)>,
    /// The times at which the only server certainly lost the lock.
    lost: Vec<Nanos>,
    register: Register,
    /// When each process called for the first attempt that it gave up since it was granted one. The request of that attempt goes on, and
    /// may get a permit for a later one.
    given_up: BTreeMap<ProcessId, Nanos>,
    /// The values of the bodies that ran once, and succeeded.
    results: BTreeSet<AttemptId>,
    /// Since when the lock has been free although an attempt waits for it.
    idle_since: Option<Nanos>,
}

struct Holder {
    process: ProcessId,
    mode: Mode,
    permit: Option<u16>,
    token: u64,
    since: Nanos,
    lease: Lease,
    called: Nanos,
}

/// A store that refuses tokens smaller than it has seen.
#[derive(Default)]
struct Register {
    largest: u64,
    value: u64,
    accepted: u64,
}

/// One call of acquire.
pub(crate) struct Attempt {
    oracle: Arc<Oracle>,
    id: AttemptId,
    keys: Vec<String>,
    modes: Vec<Mode>,
    process: ProcessId,
    called: Nanos,
    is_granted: bool,
    /// The largest token of each key that was returned before the call.
    floors: Vec<u64>,
}

/// A lease that its holder believes to hold. Drop it just before the release.
pub(crate) struct Held {
    attempt: Attempt,
    since: Nanos,
    pub(crate) lease: Lease,
    pub(crate) tokens: Vec<(String, u64)>,
}

impl Oracle {
    pub(crate) fn new(world: Arc<World>, plan: &Arc<Plan>) -> Arc<Self> {
        Arc::new(Self {
            world,
            state: Mutex::default(),
            plan: plan.clone(),
            longest_ttl: nanos(plan.longest_ttl),
            idle: plan.idle(),
            forgotten: plan.forgotten(),
            takes_turns: plan.is_calm(),
        })
    }

    /// Notes that an acquire of these keys is about to be called.
    pub(crate) fn call(
        self: &Arc<Self>,
        process: ProcessId,
        keys: &[String],
        modes: &[Mode],
    ) -> Attempt {
        let mut state = self.lock();
        state.last_attempt += 1;
        let id = state.last_attempt;
        let mut floors = Vec::new();
        let called = self.world.now();
        for (name, mode) in keys.iter().zip(modes) {
            let key = state.keys.entry(name.clone()).or_default();
            key.open.insert(id, (process, *mode));
            // An acquire of several keys waits for one after the other, and is not tracked here.
            if keys.len() == 1 {
                let waiting = key.phases.wait(process, *mode, called);
                key.waiting.insert(id, waiting);
            }
            floors.push(key.tokens.last().copied().unwrap_or(0));
        }
        self.world
            .note(|| format!("#{id} calls for {keys:?} {modes:?}"));
        Attempt {
            oracle: self.clone(),
            id,
            keys: keys.to_vec(),
            modes: modes.to_vec(),
            process,
            called,
            is_granted: false,
            floors,
        }
    }

    /// Notes that exclusion on these keys is broken on purpose, from now on for `span`.
    pub(crate) fn breaks(&self, keys: &[String], span: Nanos) {
        let now = self.world.now();
        let mut state = self.lock();
        for key in keys {
            let key = state.keys.entry(key.clone()).or_default();
            key.broken.push((now, now + span));
        }
    }

    /// Notes that the only server loses these keys, with all their data.
    pub(crate) fn loses(&self, keys: &[String]) {
        let now = self.world.now();
        let mut state = self.lock();
        for key in keys {
            state.keys.entry(key.clone()).or_default().lost.push(now);
        }
    }

    /// Notes that one of several servers loses its data.
    pub(crate) fn forgets(&self) {
        self.lock().forgetful += 1;
    }

    fn forgetful(&self) -> usize {
        self.lock().forgetful
    }

    pub(crate) fn offends(&self, what: impl Into<String>) {
        let what = what.into();
        self.world.note(|| format!("OFFENCE: {what}"));
        let now = self.world.now();
        let at = format!("{}.{:06} ms: {what}", now / MILLI, now % MILLI);
        self.lock().offences.push(at);
    }

    pub(crate) fn offences(&self) -> Vec<String> {
        self.lock().offences.clone()
    }

    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.lock();
        (state.grants, state.refused_writes)
    }

    /// Checks that a caller of a body that runs once got the value of a body that succeeded.
    pub(crate) fn answered(&self, name: &str, value: AttemptId) {
        let state = self.lock();
        let is_known = state.keys[name].results.contains(&value);
        drop(state);
        if !is_known {
            self.offends(format!("I1: {value} is no result of {name}"));
        }
    }

    /// The attempts that have no reply yet.
    pub(crate) fn waiting(&self) -> Vec<String> {
        let state = self.lock();
        let waiting = state.keys.iter().flat_map(|(key, state)| {
            let each = state.waiting.iter();
            each.map(move |(id, waiting)| {
                let (process, mode) = (waiting.process, waiting.mode);
                format!("#{id} of p{process} for {key}, {mode:?}")
            })
        });
        waiting.collect()
    }

    /// Notes the locks that have room for all their waiters and are given to none of them. To be called every now and then while
    /// nothing is broken.
    pub(crate) fn look_for_idle_locks(&self, occupied: impl Fn(&str) -> Occupied) {
        let now = self.world.now();
        let mut idle = Vec::new();
        let mut state = self.lock();
        for (name, key) in &mut state.keys {
            // Behind a holder in the same process, an exclusive waiter sends no request. If the server lost the lock with its
            // data, the process learns of the loss at the next renewal. The holder may be an attempt that wants further keys, and
            // that neither waits here nor has all of them.
            let is_behind_its_own = |waiting: &Waiting| {
                let mut open = key.open.iter();
                waiting.mode == Mode::Exclusive
                    && open.any(|(id, (process, mode))| {
                        let may_hold = match key.holders.get(id) {
                            Some(holder) => !holder.lease.is_lost(),
                            None => !key.waiting.contains_key(id),
                        };
                        *mode == Mode::Exclusive && *process == waiting.process && may_hold
                    })
            };
            let wanted: Vec<Mode> = key
                .waiting
                .values()
                .filter(|waiting| self.world.scheduler.is_awake(waiting.process))
                .filter(|waiting| !is_behind_its_own(waiting))
                .map(|waiting| waiting.mode)
                .collect();
            let occupied = occupied(name);
            let enters = |mode: &Mode| match (occupied, mode) {
                (Occupied::Free, _) | (Occupied::Shared, Mode::Shared) => true,
                (Occupied::Permits(held), Mode::Permits(permits)) => *permits > held,
                _ => false,
            };
            // If one waiter cannot enter, the others may have to wait behind it. It may be one that wants several keys.
            let mut others = key.open.iter();
            let all_enter =
                others.all(|(id, (_, mode))| key.holders.contains_key(id) || enters(mode));
            if wanted.is_empty() || !all_enter {
                key.idle_since = None;
                continue;
            }
            let since = *key.idle_since.get_or_insert(now);
            if now.saturating_sub(since) > self.idle {
                key.idle_since = Some(Nanos::MAX / 2);
                idle.push(format!(
                    "{name} has room ({occupied:?}), and no waiter gets it: {wanted:?}"
                ));
            }
        }
        drop(state);
        for what in idle {
            self.offends(what);
        }
    }

    /// Notes the locks that servers have for live processes that do not want them. To be called as
    /// [`Self::look_for_idle_locks`] is.
    pub(crate) fn look_for_forgotten_locks(&self, owners: impl Fn(&str) -> Vec<ProcessId>) {
        let now = self.world.now();
        let mut forgotten = Vec::new();
        let mut state = self.lock();
        for (name, key) in &mut state.keys {
            let is_forgotten = |process: &ProcessId| {
                self.world.scheduler.is_awake(*process)
                    && !key.open.values().any(|(other, _)| other == process)
            };
            let Some(process) = owners(name).into_iter().find(is_forgotten) else {
                key.forgotten_since = None;
                continue;
            };
            let since = *key.forgotten_since.get_or_insert(now);
            if now.saturating_sub(since) > self.forgotten {
                key.forgotten_since = Some(Nanos::MAX / 2);
                forgotten.push(format!(
                    "{name} is still there for p{process}, which does not want it"
                ));
            }
        }
        drop(state);
        for what in forgotten {
            self.offends(what);
        }
    }

    /// The time since which the process may have had the lease that an attempt got. `called` is the time of the attempt's call.
    ///
    /// The attempt may get the lease of another task, or a shared lease that is kept. The loss of such a lease may be unknown for
    /// a ttl.
    fn known_since(&self, process: ProcessId, mode: Mode, called: Nanos) -> Nanos {
        if self.is_handed_on(process, mode) {
            called.saturating_sub(self.longest_ttl)
        } else {
            called
        }
    }

    fn is_handed_on(&self, process: ProcessId, mode: Mode) -> bool {
        let own = self.plan.processes.get(process);
        match mode {
            Mode::Exclusive => own.is_some_and(|own| own.tasks > 1),
            Mode::Shared => true,
            Mode::Permits(_) => false,
        }
    }

    fn is_broken(key: &Key, from: Nanos, to: Nanos) -> bool {
        key.broken
            .iter()
            .any(|(begin, end)| *begin <= to && from <= *end)
    }

    fn certain(process: ProcessId, lease: &Lease) -> Duration {
        as_seen_by(process, || certain_for(lease))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Attempt {
    fn mode_of(&self, name: &str) -> Mode {
        let place = self.keys.iter().position(|other| other == name);
        place.map_or(Mode::Exclusive, |place| self.modes[place])
    }

    pub(crate) fn failed(&self, error: &LockError) {
        self.oracle
            .world
            .note(|| format!("#{} fails: {error:?}", self.id));
        if is_wrong(error) {
            let id = self.id;
            self.oracle.offends(format!("#{id} is refused: {error:?}"));
        }
    }

    /// Notes that the lock was granted and the caller knows it.
    pub(crate) fn acquired(mut self, lease: &Lease) -> Held {
        self.is_granted = true;
        let tokens: Vec<(String, u64)> = lease
            .fencing_tokens()
            .into_iter()
            .map(|(key, token)| (key.to_string(), token.into()))
            .collect();
        let oracle = self.oracle.clone();
        let now = oracle.world.now();
        oracle.world.note(|| format!("#{} has {tokens:?}", self.id));
        let mut offences = Vec::new();
        if tokens.len() != self.keys.len() {
            offences.push(format!(
                "#{} asked for {:?}, and has {tokens:?}",
                self.id, self.keys
            ));
        }
        let mut state = oracle.lock();
        state.grants += 1;
        for (name, token) in &tokens {
            let key = state.keys.get_mut(name).expect("it was called for");
            let place = self.keys.iter().position(|other| other == name);
            let mode = self.mode_of(name);
            let floor = place.map_or(0, |place| self.floors[place]);
            let permit = permit_of(lease, name);
            offences.extend(self.look_at_token(key, name, (mode, permit), *token, floor));
            if Oracle::certain(self.process, lease).is_zero() {
                continue;
            }
            let holder = Holder {
                process: self.process,
                mode,
                permit,
                token: *token,
                since: now,
                lease: lease.clone(),
                called: self.called,
            };
            offences.extend(self.look_at_others(key, name, &holder));
            key.given_up.remove(&self.process);
            key.holders.insert(self.id, holder);
        }
        drop(state);
        for offence in offences {
            oracle.offends(offence);
        }
        Held {
            attempt: self,
            since: now,
            lease: lease.clone(),
            tokens,
        }
    }
    /// Checks S4, and I3 with S5, for the grant of this attempt. `floor`: the largest token that was returned before its call.
    fn look_at_token(
        &self,
        key: &mut Key,
        name: &str,
        (mode, permit): (Mode, Option<u16>),
        token: u64,
        floor: u64,
    ) -> Vec<String> {
        let (oracle, mut offences) = (&self.oracle, Vec::new());
        let now = oracle.world.now();
        let waited = key.waiting.remove(&self.id);
        key.idle_since = None;
        let recently = now.saturating_sub(oracle.longest_ttl);
        let hands_on = oracle.is_handed_on(self.process, mode);
        let may_be_old = hands_on && Oracle::is_broken(key, recently, now);
        // All holders of a shared phase have one token, larger than those of all earlier phases. Every other holder has its own. A
        // task may get a permit that the server gave before the call to a task of its process, which has left. Meanwhile other
        // permits may have larger tokens.
        let is_new = match mode {
            Mode::Shared => token >= floor && !key.tokens_of_one.contains(&token),
            Mode::Exclusive => {
                key.tokens_of_one.insert(token);
                token > floor && !key.tokens.contains(&token)
            }
            Mode::Permits(_) => {
                key.tokens_of_one.insert(token);
                let before = permit.and_then(|permit| key.tokens_of_permits.insert(permit, token));
                let grows = token > floor || token > before.unwrap_or(0);
                grows && !key.tokens.contains(&token)
            }
        };
        if !may_be_old && !is_new {
            offences.push(format!(
                "I3: #{} has token {token} of {name}, and {floor} was given out before it was called",
                self.id
            ));
        }
        key.tokens.insert(token);
        key.phases.granted(mode, token, now);
        if oracle.takes_turns {
            let phases = &key.phases;
            let mut wrong = Vec::new();
            wrong.extend(waited.and_then(|waited| phases.look_at_wait(&waited)));
            // A share that was taken away by force admits tasks of its process until its next renewal finds that out.
            if mode == Mode::Shared && !may_be_old {
                let (waiting, within) = (key.waiting.values(), oracle.idle);
                wrong.extend(phases.look_at_late_entry(token, self.called, waiting, within));
            }
            let shown = wrong.into_iter();
            offences.extend(shown.map(|wrong| format!("S4: #{} of {name} {wrong}", self.id)));
        }
        offences
    }

    /// Checks I1 with S1, and the permits, for a lease that is certain now.
    fn look_at_others(&self, key: &Key, name: &str, own: &Holder) -> Vec<String> {
        let (oracle, mut offences) = (&self.oracle, Vec::new());
        let now = oracle.world.now();
        let mut before = 0;
        let given_up = key.given_up.get(&own.process).copied();
        let asked = given_up.map_or(own.called, |given_up| given_up.min(own.called));
        for (id, other) in &key.holders {
            let certain = Oracle::certain(other.process, &other.lease);
            // With several keys, the first may have been lost during the wait for the last.
            let from = oracle.known_since(own.process, own.mode, own.called);
            let from = from.min(oracle.known_since(other.process, other.mode, other.called));
            if certain.is_zero() || Oracle::is_broken(key, from, now) {
                continue;
            }
            let is_allowed = match (own.mode, other.mode) {
                // Both are in one phase.
                (Mode::Shared, Mode::Shared) => own.token == other.token,
                (Mode::Permits(_), Mode::Permits(_)) => {
                    before += u16::from(other.since <= asked);
                    own.permit != other.permit
                }
                _ => false,
            };
            if !is_allowed {
                offences.push(format!(
                    "I1: #{} of p{} has {name} {:?}, while #{id} of p{} is certain of it {:?} with {} for {certain:?}",
                    self.id, own.process, own.mode, other.process, other.mode, other.token
                ));
            }
        }
        // It entered when fewer than its permits were held. Tokens do not show the order: a repeated request gets another token.
        if let Mode::Permits(permits) = own.mode
            && (before >= permits || own.permit.is_none_or(|permit| permit >= permits))
        {
            offences.push(format!(
                "P1: #{} has {:?} of {permits} permits of {name}, and {before} had one before it",
                self.id, own.permit
            ));
        }
        offences
    }
}

fn permit_of(lease: &Lease, name: &str) -> Option<u16> {
    let fences = lease.fences();
    let fence = fences.iter().find(|(key, _)| key.as_str() == name);
    fence.and_then(|(_, fence)| fence.permit)
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let (mut gone, mut wrong) = (Vec::new(), Vec::new());
        let mut state = self.oracle.lock();
        for (name, mode) in self.keys.iter().zip(&self.modes) {
            if let Some(key) = state.keys.get_mut(name) {
                let waited = key.waiting.remove(&self.id);
                wrong.extend(waited.and_then(|waited| key.phases.look_at_wait(&waited)));
                if !self.is_granted {
                    key.phases.failed(*mode);
                    let given_up = key.given_up.entry(self.process);
                    let first = given_up.or_insert(self.called);
                    *first = self.called.min(*first);
                }
                key.open.remove(&self.id);
                gone.extend(key.holders.remove(&self.id));
            }
        }
        drop(state);
        if self.oracle.takes_turns {
            for wrong in wrong {
                self.oracle.offends(format!("S4: #{} {wrong}", self.id));
            }
        }
        self.oracle.world.note(|| format!("#{} is over", self.id));
    }
}

impl Held {
    /// Checks that the holder's remaining time is not longer than the servers' remaining time.
    pub(crate) fn check_belief(&self) {
        let oracle = &self.attempt.oracle;
        let (world, process) = (&oracle.world, self.attempt.process);
        let certain = Oracle::certain(process, &self.lease);
        if certain.is_zero() {
            return;
        }
        let now = world.now();
        let certain = world.in_the_world(process, certain);
        for (name, _) in &self.tokens {
            let mode = self.attempt.mode_of(name);
            let permit = permit_of(&self.lease, name);
            let state = oracle.lock();
            let from = oracle.known_since(process, mode, self.attempt.called);
            let is_broken = Oracle::is_broken(&state.keys[name], from, now);
            let was_lost = |lost: &Nanos| self.since < *lost && lost + oracle.longest_ttl < now;
            let is_lost = state.keys[name].lost.iter().any(was_lost);
            drop(state);
            if is_lost {
                oracle.offends(format!(
                    "#{} of p{process} is certain of {name}, which the server lost long ago",
                    self.attempt.id
                ));
            }
            let network = world.network();
            let has_it = |host: &&crate::network::Host| {
                let left = host.holds(&format!("lock:{name}"), process, mode, permit, now);
                left.is_some_and(|left| left + MILLI >= certain)
            };
            let with_it = network.hosts.iter().filter(has_it).count();
            let enough = (network.hosts.len() / 2 + 1).saturating_sub(oracle.forgetful());
            drop(network);
            if with_it < enough && !is_broken {
                oracle.offends(format!(
                    "I2: #{} of p{process} is certain of {name} for {certain} ns, and only {with_it} servers know it",
                    self.attempt.id
                ));
            }
        }
    }

    /// Announces the token to the store, and reads.
    pub(crate) fn read(&self) -> Option<u64> {
        let (name, token) = &self.tokens[0];
        let mode = self.attempt.mode_of(name);
        let mut state = self.attempt.oracle.lock();
        let register = &mut state.keys.get_mut(name)?.register;
        if *token < register.largest {
            state.refused_writes += 1;
            return None;
        }
        register.largest = *token;
        // Only an exclusive holder writes: several writers at a time would lose writes.
        (mode == Mode::Exclusive).then_some(register.value)
    }

    /// Writes the value that was read, plus one.
    pub(crate) fn write(&self, read: u64) {
        let (name, token) = &self.tokens[0];
        let oracle = &self.attempt.oracle;
        let mut state = oracle.lock();
        let register = &mut state
            .keys
            .get_mut(name)
            .expect("it was called for")
            .register;
        if *token < register.largest {
            state.refused_writes += 1;
            return;
        }
        register.largest = *token;
        register.accepted += 1;
        register.value = read + 1;
        let is_lost = register.value != register.accepted;
        register.value = register.accepted;
        drop(state);
        if is_lost {
            oracle.offends(format!(
                "I4: the store of {name} lost a write to #{}",
                self.attempt.id
            ));
        }
    }

    /// Checks that no result stands when a body begins that is to run once.
    pub(crate) fn begins_run(&self) {
        let (oracle, name) = (&self.attempt.oracle, &self.tokens[0].0);
        let now = oracle.world.now();
        let stands = oracle.world.network().hosts[0].has_result(name, now);
        let is_broken = Oracle::is_broken(&oracle.lock().keys[name], self.attempt.called, now);
        if stands && !is_broken {
            let id = self.attempt.id;
            oracle.offends(format!(
                "I3: #{id} runs the body of {name} beside its result"
            ));
        }
    }

    /// Notes that the body succeeded. Returns its value.
    pub(crate) fn ends_run(&self) -> AttemptId {
        let (name, id) = (&self.tokens[0].0, self.attempt.id);
        let mut state = self.attempt.oracle.lock();
        let key = state.keys.get_mut(name).expect("it was called for");
        key.results.insert(id);
        id
    }

    pub(crate) fn watch<F>(&self, body: F) -> Watched<F> {
        Watched {
            oracle: self.attempt.oracle.clone(),
            process: self.attempt.process,
            lease: self.lease.clone(),
            name: format!("#{}", self.attempt.id),
            body: Box::pin(body),
        }
    }
}

/// A body that must not be polled when its lease is over.
pub(crate) struct Watched<F> {
    oracle: Arc<Oracle>,
    process: ProcessId,
    lease: Lease,
    name: String,
    body: Pin<Box<F>>,
}

impl<F: Future> Future for Watched<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if Oracle::certain(self.process, &self.lease).is_zero() {
            let name = &self.name;
            self.oracle
                .offends(format!("the body of {name} takes a step after its lease"));
        }
        self.body.as_mut().poll(context)
    }
}
