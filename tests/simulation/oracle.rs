//! Observes the whole world, and reports violations: two holders at the same time, tokens that do not grow, a body that continues
//! after its lease, a free lock for which an attempt waits.
//!
//! It observes leases without changing them, and reads the servers' data directly.
//!
//! The `history` of the harness cannot replace it. A history consists of the processes' own records, and needs an allowance for
//! their delays. The oracle observes between any two steps, on one clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use lock_core::{__simulation::certain_for, Lease, LockError};
use lock_tests::Mode;

use crate::{
    locks::Occupied,
    network::{HostId, MILLI, Nanos},
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
    /// Set if the order of readers and writers is checked.
    takes_turns: bool,
}

#[derive(Default)]
struct State {
    keys: BTreeMap<String, Key>,
    last_attempt: AttemptId,
    violations: Vec<String>,
    /// The servers that have lost their data, and when, if there are several.
    forgetful: Vec<(HostId, Nanos)>,
    grants: u64,
}

#[derive(Default)]
struct Key {
    holders: BTreeMap<AttemptId, Holder>,
    waiting: BTreeMap<AttemptId, Waiting>,
    phases: Phases,
    /// Attempts that have not ended.
    open: BTreeMap<AttemptId, (ProcessId, Mode)>,
    /// The time since which a server has held the lock for a process that does not want it.
    forgotten_since: Option<Nanos>,
    tokens: BTreeSet<u64>,
    /// The largest token of each permit: a store compares tokens of one permit.
    tokens_of_permits: BTreeMap<u16, u64>,
    /// The tokens of exclusive holders and of permits.
    tokens_of_one: BTreeSet<u64>,
    /// The spans of time in which exclusion was broken on purpose.
    broken: Vec<(Nanos, Nanos)>,
    /// The times at which the only server lost the lock.
    lost: Vec<Nanos>,
    /// The time of each process's first call that it gave up since its last grant. The request of that call may still get a
    /// permit, for a later attempt.
    given_up: BTreeMap<ProcessId, Nanos>,
    /// The values of the bodies that ran once and succeeded.
    results: BTreeSet<AttemptId>,
    /// The time since which the lock has been free while an attempt waits for it.
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

/// One call of acquire.
pub(crate) struct Attempt {
    oracle: Arc<Oracle>,
    id: AttemptId,
    keys: Vec<Wanted>,
    process: ProcessId,
    called: Nanos,
    is_granted: bool,
}

/// A key that an attempt requests.
#[derive(Debug)]
struct Wanted {
    name: String,
    mode: Mode,
    /// The largest token that was returned before the call.
    floor: u64,
}

/// A lease on which its holder relies. To be dropped just before the release.
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

    /// Records that an acquire of these keys is about to be called.
    pub(crate) fn call(self: &Arc<Self>, process: ProcessId, keys: &[(&str, Mode)]) -> Attempt {
        let mut state = self.lock();
        state.last_attempt += 1;
        let (id, called) = (state.last_attempt, self.world.now());
        let want = |&(name, mode): &(&str, Mode)| {
            let key = state.keys.entry(name.to_owned()).or_default();
            key.open.insert(id, (process, mode));
            // An acquire of several keys waits for one after another, and is not tracked here.
            if keys.len() == 1 {
                let waiting = key.phases.wait(process, mode, called);
                key.waiting.insert(id, waiting);
            }
            Wanted {
                name: name.to_owned(),
                mode,
                floor: key.tokens.last().copied().unwrap_or(0),
            }
        };
        let keys_wanted = keys.iter().map(want).collect();
        self.world.note(|| format!("#{id} calls for {keys:?}"));
        Attempt {
            oracle: self.clone(),
            id,
            keys: keys_wanted,
            process,
            called,
            is_granted: false,
        }
    }

    /// Records that exclusion on these keys is broken on purpose, for `span` from now. Those who hold a lock until then may rely on
    /// it for longer.
    pub(crate) fn breaks(&self, keys: &[String], span: Nanos) {
        let now = self.world.now();
        let mut state = self.lock();
        for key in keys {
            let key = state.keys.entry(key.clone()).or_default();
            key.broken.push((now, now + span));
        }
    }

    /// Records that what broke a key since `begin` is over.
    pub(crate) fn mends(&self, key: &str, begin: Nanos) {
        let now = self.world.now();
        let mut state = self.lock();
        let broken = &mut state.keys.get_mut(key).expect("it was broken").broken;
        for (_, end) in broken.iter_mut().filter(|(from, _)| *from == begin) {
            *end = now.min(*end);
        }
    }

    /// Records that the only server loses these keys, with all their data.
    pub(crate) fn loses(&self, keys: &[String]) {
        let now = self.world.now();
        let mut state = self.lock();
        for key in keys {
            state.keys.entry(key.clone()).or_default().lost.push(now);
        }
    }

    /// Records that one of several servers loses its data.
    pub(crate) fn forgets(&self, host: HostId) {
        let now = self.world.now();
        self.lock().forgetful.push((host, now));
    }

    /// Returns how many of several servers have lost their data since then.
    fn forgetful_since(&self, since: Nanos) -> usize {
        let state = self.lock();
        let recent = state.forgetful.iter().filter(|(_, at)| *at >= since);
        recent.map(|(host, _)| host).collect::<BTreeSet<_>>().len()
    }

    pub(crate) fn report(&self, what: impl Into<String>) {
        let what = what.into();
        self.world.note(|| format!("VIOLATION: {what}"));
        let now = self.world.now();
        let at = format!("{}.{:06} ms: {what}", now / MILLI, now % MILLI);
        self.lock().violations.push(at);
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    pub(crate) fn grants(&self) -> u64 {
        self.lock().grants
    }

    /// Checks that a caller got the value of a body that ran once and succeeded.
    pub(crate) fn answered(&self, name: &str, value: AttemptId) {
        let state = self.lock();
        let is_known = state.keys[name].results.contains(&value);
        drop(state);
        if !is_known {
            self.report(format!("I1: {value} is not a result of {name}"));
        }
    }

    /// Returns the attempts that have no reply yet.
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

    /// Reports locks that have room for all their waiters, and are granted to none of them. To be called regularly while nothing
    /// is broken.
    pub(crate) fn look_for_idle_locks(&self, occupied: impl Fn(&str) -> Occupied) {
        let now = self.world.now();
        let mut idle = Vec::new();
        let mut state = self.lock();
        for (name, key) in &mut state.keys {
            // An exclusive waiter sends no request while its process holds the lock. If the server has lost the lock with its
            // data, the process learns that at the next renewal. The holder may be an attempt for several keys, which neither
            // waits here nor holds all of them.
            let waits_for_its_own = |waiting: &Waiting| {
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
                .filter(|waiting| !waits_for_its_own(waiting))
                .map(|waiting| waiting.mode)
                .collect();
            let occupied = occupied(name);
            let enters = |mode: &Mode| match (occupied, mode) {
                (Occupied::Free, _) | (Occupied::Shared, Mode::Shared) => true,
                (Occupied::Permits(held), Mode::Permits(permits)) => *permits > held,
                _ => false,
            };
            // If one waiter cannot enter, such as one for several keys, the others may have to wait for it.
            let mut others = key.open.iter();
            let all_enter =
                others.all(|(id, (_, mode))| key.holders.contains_key(id) || enters(mode));
            let is_idle = !wanted.is_empty() && all_enter;
            if is_overdue(&mut key.idle_since, is_idle, now, self.idle) {
                idle.push(format!(
                    "{name} has room ({occupied:?}), and is granted to no waiter: {wanted:?}"
                ));
            }
        }
        drop(state);
        for what in idle {
            self.report(what);
        }
    }

    /// Reports locks that servers hold for live processes that do not want them. To be called like
    /// [`Self::look_for_idle_locks`].
    pub(crate) fn look_for_forgotten_locks(&self, owners: impl Fn(&str) -> Vec<ProcessId>) {
        let now = self.world.now();
        let mut forgotten = Vec::new();
        let mut state = self.lock();
        for (name, key) in &mut state.keys {
            let is_forgotten = |process: &ProcessId| {
                self.world.scheduler.is_awake(*process)
                    && !key.open.values().any(|(other, _)| other == process)
            };
            let owner = owners(name).into_iter().find(is_forgotten);
            let since = &mut key.forgotten_since;
            if is_overdue(since, owner.is_some(), now, self.forgotten)
                && let Some(process) = owner
            {
                forgotten.push(format!(
                    "{name} is still held for p{process}, which does not want it"
                ));
            }
        }
        drop(state);
        for what in forgotten {
            self.report(what);
        }
    }

    /// Returns the time since which the process may have held the lease that an attempt got, which was called at `called`.
    ///
    /// The attempt may get the lease of another task, or a kept share. The process may not know for a ttl that such a lease is lost.
    fn held_since(&self, process: ProcessId, mode: Mode, called: Nanos) -> Nanos {
        if self.is_handed_over(process, mode) {
            called.saturating_sub(self.longest_ttl)
        } else {
            called
        }
    }

    fn is_handed_over(&self, process: ProcessId, mode: Mode) -> bool {
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
    fn wanted(&self, name: &str) -> &Wanted {
        let mut keys = self.keys.iter();
        let wanted = keys.find(|wanted| wanted.name == name);
        wanted.expect("a requested key")
    }

    pub(crate) fn failed(&self, error: &LockError) {
        self.oracle
            .world
            .note(|| format!("#{} fails: {error:?}", self.id));
        if is_wrong(error) {
            let id = self.id;
            self.oracle.report(format!("#{id} is refused: {error:?}"));
        }
    }

    /// Records that the lock was granted, and that the caller knows it.
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
        let mut violations = Vec::new();
        if tokens.len() != self.keys.len() {
            violations.push(format!(
                "#{} asked for {:?}, and has {tokens:?}",
                self.id, self.keys
            ));
        }
        let mut state = oracle.lock();
        state.grants += 1;
        for (name, token) in &tokens {
            let key = state.keys.get_mut(name).expect("it was called for");
            let Wanted { mode, floor, .. } = *self.wanted(name);
            let permit = permit_of(lease, name);
            let is_certain = !Oracle::certain(self.process, lease).is_zero();
            violations.extend(self.look_at_token(
                key,
                name,
                (mode, permit),
                (*token, floor),
                is_certain,
            ));
            if !is_certain {
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
            violations.extend(self.look_at_others(key, name, &holder));
            key.given_up.remove(&self.process);
            key.holders.insert(self.id, holder);
        }
        drop(state);
        for violation in violations {
            oracle.report(violation);
        }
        Held {
            attempt: self,
            since: now,
            lease: lease.clone(),
            tokens,
        }
    }

    /// Checks S4, and I3 with S5, for the grant of this attempt. `floor` is the largest token that was returned before its call.
    fn look_at_token(
        &self,
        key: &mut Key,
        name: &str,
        (mode, permit): (Mode, Option<u16>),
        (token, floor): (u64, u64),
        is_certain: bool,
    ) -> Vec<String> {
        let (oracle, mut violations) = (&self.oracle, Vec::new());
        let now = oracle.world.now();
        let since = oracle.held_since(self.process, mode, self.called);
        let is_later = is_certain && !Oracle::is_broken(key, since, now);
        let last = key.tokens.last().copied().unwrap_or(0);
        let waited = key.waiting.remove(&self.id);
        key.idle_since = None;
        let recently = now.saturating_sub(oracle.longest_ttl);
        let may_be_old =
            oracle.is_handed_over(self.process, mode) && Oracle::is_broken(key, recently, now);
        // All holders of a shared phase have one token, larger than those of all earlier phases. Every other holder has its own.
        // A task may get a permit that was granted before its call, for a task of its process that has left. By then, other
        // permits may have larger tokens.
        let is_new = match mode {
            Mode::Shared => token >= floor && !key.tokens_of_one.contains(&token),
            Mode::Exclusive => {
                key.tokens_of_one.insert(token);
                token > floor && !key.tokens.contains(&token)
            }
            Mode::Permits(_) => {
                key.tokens_of_one.insert(token);
                let before = permit.map_or(0, |permit| {
                    let largest = key.tokens_of_permits.entry(permit).or_default();
                    std::mem::replace(largest, token.max(*largest))
                });
                let grows = token > before || !is_later && token > floor;
                grows && !key.tokens.contains(&token)
            }
        };
        // A lease that is certain when it is returned is later than all leases that were returned before.
        if is_later && token < last && !matches!(mode, Mode::Permits(_)) {
            violations.push(format!(
                "I3: #{} has token {token} of {name} after {last} was returned, and its lease is certain",
                self.id
            ));
        }
        if !may_be_old && !is_new {
            violations.push(format!(
                "I3: #{} has token {token} of {name}, and {floor} was returned before its call",
                self.id
            ));
        }
        key.tokens.insert(token);
        key.phases.granted(mode, token, now);
        if oracle.takes_turns {
            let phases = &key.phases;
            let mut wrong = Vec::new();
            wrong.extend(waited.and_then(|waited| phases.look_at_wait(&waited)));
            // A share that was released by force admits tasks of its process until its next renewal.
            if mode == Mode::Shared && !may_be_old {
                let (waiting, within) = (key.waiting.values(), oracle.idle);
                wrong.extend(phases.look_at_late_entry(token, self.called, waiting, within));
            }
            let shown = wrong.into_iter();
            violations.extend(shown.map(|wrong| format!("S4: #{} of {name} {wrong}", self.id)));
        }
        violations
    }

    /// Checks I1 with S1, and P1, for a lease that is certain now.
    fn look_at_others(&self, key: &Key, name: &str, own: &Holder) -> Vec<String> {
        let (oracle, mut violations) = (&self.oracle, Vec::new());
        let now = oracle.world.now();
        let mut before = 0;
        let given_up = key.given_up.get(&own.process).copied();
        let asked = given_up.map_or(own.called, |given_up| given_up.min(own.called));
        for (id, other) in &key.holders {
            let certain = Oracle::certain(other.process, &other.lease);
            // An attempt for several keys may have lost the first one while it waited for the last.
            let from = oracle.held_since(own.process, own.mode, own.called);
            let from = from.min(oracle.held_since(other.process, other.mode, other.called));
            if certain.is_zero() || Oracle::is_broken(key, from, now) {
                continue;
            }
            let is_allowed = match (own.mode, other.mode) {
                // In one phase.
                (Mode::Shared, Mode::Shared) => own.token == other.token,
                (Mode::Permits(_), Mode::Permits(_)) => {
                    before += u16::from(other.since <= asked);
                    own.permit != other.permit
                }
                _ => false,
            };
            if !is_allowed {
                violations.push(format!(
                    "I1: #{} of p{} has {name} {:?}, while #{id} of p{} is certain of it {:?} with {} for {certain:?}",
                    self.id, own.process, own.mode, other.process, other.mode, other.token
                ));
            }
        }
        // Tokens do not show the order of entries, since a repeated request gets another token.
        if let Mode::Permits(permits) = own.mode
            && (before >= permits || own.permit.is_none_or(|permit| permit >= permits))
        {
            violations.push(format!(
                "P1: #{} has {:?} of {permits} permits of {name}, and {before} had one before it",
                self.id, own.permit
            ));
        }
        violations
    }
}

/// Returns whether a condition has held for longer than `bound`, which is reported once. `since` is the time since which it holds.
fn is_overdue(since: &mut Option<Nanos>, holds: bool, now: Nanos, bound: Nanos) -> bool {
    if !holds {
        *since = None;
        return false;
    }
    let begun = *since.get_or_insert(now);
    let is_overdue = now.saturating_sub(begun) > bound;
    if is_overdue {
        *since = Some(Nanos::MAX / 2);
    }
    is_overdue
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
        for Wanted { name, mode, .. } in &self.keys {
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
                self.oracle.report(format!("S4: #{} {wrong}", self.id));
            }
        }
        self.oracle.world.note(|| format!("#{} is over", self.id));
    }
}

impl Held {
    /// Checks that the holder relies on its lease for no longer than the servers keep it.
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
            let mode = self.attempt.wanted(name).mode;
            let permit = permit_of(&self.lease, name);
            let state = oracle.lock();
            let from = oracle.held_since(process, mode, self.attempt.called);
            let is_broken = Oracle::is_broken(&state.keys[name], from, now);
            let was_lost = |lost: &Nanos| self.since < *lost && lost + oracle.longest_ttl < now;
            let is_lost = state.keys[name].lost.iter().any(was_lost);
            drop(state);
            if is_lost {
                oracle.report(format!(
                    "I2: #{} of p{process} is certain of {name}, which the server lost more than a ttl ago",
                    self.attempt.id
                ));
            }
            let network = world.network();
            let has_it = |host: &&crate::network::Host| {
                let left = host.holds(&format!("lock:{name}"), process, mode, permit, now);
                left.is_some_and(|left| left + MILLI >= certain)
            };
            let with_it = network.hosts.iter().filter(has_it).count();
            let enough = (network.hosts.len() / 2 + 1).saturating_sub(oracle.forgetful_since(from));
            drop(network);
            if with_it < enough && !is_broken {
                oracle.report(format!(
                    "I2: #{} of p{process} is certain of {name} for {certain} ns, and only {with_it} servers know it",
                    self.attempt.id
                ));
            }
        }
    }

    /// Checks that no result is stored when the body of a run once begins.
    pub(crate) fn begins_run(&self) {
        let (oracle, name) = (&self.attempt.oracle, &self.tokens[0].0);
        let now = oracle.world.now();
        let is_stored = oracle.world.network().hosts[0].has_result(name, now);
        let is_broken = Oracle::is_broken(&oracle.lock().keys[name], self.attempt.called, now);
        if is_stored && !is_broken {
            let id = self.attempt.id;
            oracle.report(format!(
                "I3: #{id} runs the body of {name}, which has a result"
            ));
        }
    }

    /// Records that the body succeeded. Returns its value.
    pub(crate) fn ends_run(&self) -> AttemptId {
        let (name, id) = (&self.tokens[0].0, self.attempt.id);
        let mut state = self.attempt.oracle.lock();
        let key = state.keys.get_mut(name).expect("it was called for");
        key.results.insert(id);
        id
    }

    /// Runs a body that must not be polled after its lease has ended.
    pub(crate) async fn watch<F: Future>(&self, body: F) -> F::Output {
        let mut body = pin!(body);
        poll_fn(|context| {
            let Attempt {
                oracle,
                process,
                id,
                ..
            } = &self.attempt;
            if Oracle::certain(*process, &self.lease).is_zero() {
                oracle.report(format!("the body of #{id} is polled after its lease"));
            }
            body.as_mut().poll(context)
        })
        .await
    }
}
