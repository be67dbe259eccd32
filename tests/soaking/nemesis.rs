//! Injects the faults of the plan, heals them, and records when each was.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write},
    sync::{Mutex, MutexGuard},
    thread,
    time::{Duration, Instant},
};

use lock_tests::{
    AfterLoss, Frames, Proxy, RedisServer, eventually_blocking,
    history::{Checker, Invariant, Moment, Tally, Window},
    slot_of,
};
use redis::Value;

use crate::{
    crew::Crew,
    fault::{Cause, Clients, Data, Fault, Paused, Suspends, Wipes, full_key, key},
    plan::{CONTENDERS, Plan, Round},
    topology::{Kind, Servers, Topology},
};

/// The faults so far, and the checks that have to know them.
#[derive(Debug)]
pub(crate) struct Ledger(Mutex<State>);

#[derive(Debug)]
struct State {
    checker: Checker,
    counts: BTreeMap<String, u64>,
    // The beginning of the current faults, if there are any, and their names.
    since: Option<Moment>,
    current: String,
    is_over: bool,
}

impl Ledger {
    pub(crate) fn new(checker: Checker) -> Self {
        Self(Mutex::new(State {
            checker,
            counts: BTreeMap::new(),
            since: None,
            current: String::new(),
            is_over: false,
        }))
    }

    /// Judges all events up to this time, or up to the beginning of the current faults, once `add` has added the new ones.
    pub(crate) fn judge(&self, until: Moment, add: impl FnOnce(&mut Checker)) {
        let mut state = self.state();
        add(&mut state.checker);
        let known = state.since.map_or(until, |since| since.min(until));
        state.checker.judge(known);
    }

    /// Adds violations that the history does not show.
    pub(crate) fn report(&self, invariant: Invariant, lines: impl IntoIterator<Item = String>) {
        let mut state = self.state();
        for line in lines {
            state.checker.report(invariant, line);
        }
    }

    /// Returns whether there is no fault now.
    pub(crate) fn is_calm(&self) -> bool {
        self.state().since.is_none()
    }

    /// Returns a line about the soak so far.
    pub(crate) fn status(&self) -> String {
        let state = self.state();
        let (tally, faults) = (state.checker.tally(), state.counts.values().sum::<u64>());
        let (grants, violations) = (tally.acquisitions, tally.violations().values().sum::<u64>());
        format!(
            "{grants:>8} acquisitions  {faults:>4} faults  {violations} violations  {}",
            state.current
        )
    }

    /// Records that no further fault will come.
    pub(crate) fn close(&self) {
        self.state().is_over = true;
    }

    /// Returns the result, and how often each kind of fault was injected.
    pub(crate) fn end(self) -> (Tally, BTreeMap<String, u64>) {
        let state = self.0.into_inner().expect("no panic while it is locked");
        (state.checker.into_tally(), state.counts)
    }

    fn begin(&self, faults: &[Fault]) {
        let mut state = self.state();
        state.since = Some(Moment::now());
        let names: Vec<String> = faults.iter().map(|fault| fault.name()).collect();
        state.current = names.join(" + ");
    }

    /// Records the end of the current faults, and counts those that have `happened`.
    fn heal(&self, faults: &[Fault], happened: &[bool], topology: Topology) {
        let mut state = self.state();
        for (fault, happened) in faults.iter().zip(happened) {
            if *happened {
                *state.counts.entry(fault.name()).or_default() += 1;
            }
        }
        state.current.clear();
        let window = Window {
            from: state.since.take().expect("it has begun"),
            to: Moment::now(),
        };
        state.checker.broken(window);
        for fault in faults {
            let suspends = fault.suspends(topology);
            state.suspend(suspends, window);
            match fault.wipes(topology) {
                Some(Wipes::All) => state.checker.wiped(window, None),
                Some(Wipes::Key(number)) => {
                    state.checker.wiped(window, Some(key(number).to_owned()));
                }
                None => {}
            }
        }
    }

    /// Records an unplanned fail-over: the servers took a busy server for dead.
    fn unplanned(&self, window: Window) {
        let mut state = self.state();
        let name = "unplanned fail-over".to_owned();
        *state.counts.entry(name).or_default() += 1;
        state.checker.broken(window);
        state.suspend(Suspends::ExclusionAndClocks, window);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic while it is locked")
    }
}

impl State {
    fn suspend(&mut self, suspends: Suspends, window: Window) {
        if suspends != Suspends::Nothing {
            self.checker.excused(window);
        }
        if suspends == Suspends::ExclusionAndClocks {
            self.checker.had_other_clocks(window);
        }
    }
}

/// Everything that a fault can hit.
pub(crate) struct Nemesis<'a> {
    pub(crate) servers: &'a Servers,
    pub(crate) crew: &'a Crew,
    pub(crate) ledger: &'a Ledger,
    /// Gets a line when faults begin, and when they are healed.
    pub(crate) diary: File,
}

impl Nemesis<'_> {
    /// Carries out the plan until the deadline, and then waits for the last calm.
    pub(crate) fn work(mut self, plan: Plan, deadline: Instant) -> io::Result<()> {
        let last_calm = plan.last_calm();
        // The contenders start first.
        thread::sleep(Duration::from_secs(2));
        for round in plan {
            self.carry_out(&round)?;
            if Instant::now() + round.calm >= deadline {
                break;
            }
            thread::sleep(round.calm);
        }
        thread::sleep(last_calm.max(self.servers.topology.quarantine()));
        Ok(())
    }

    fn carry_out(&mut self, round: &Round) -> io::Result<()> {
        writeln!(self.diary, "{} {round:?}", Moment::now())?;
        self.ledger.begin(&round.faults);
        let happened = thread::scope(|scope| {
            let (servers, crew) = (self.servers, self.crew);
            let start = |(&fault, after): (&Fault, Duration)| {
                scope.spawn(move || {
                    thread::sleep(after);
                    inject(servers, crew, fault)
                })
            };
            // The second fault comes while the contenders are still dealing with the first.
            let after = [Duration::ZERO, Duration::from_millis(700)];
            let running: Vec<_> = round.faults.iter().zip(after).map(start).collect();
            let joined = running.into_iter().map(thread::ScopedJoinHandle::join);
            joined
                .map(|fault| fault.expect("a fault that can be injected"))
                .collect::<io::Result<Vec<bool>>>()
        })?;
        self.ledger
            .heal(&round.faults, &happened, self.servers.topology);
        writeln!(self.diary, "{} healed", Moment::now())
    }
}

/// Injects a fault, and heals it. Returns whether it happened.
fn inject(servers: &Servers, crew: &Crew, fault: Fault) -> io::Result<bool> {
    let mut happened = true;
    match fault {
        Fault::KillContenders { place, count } => {
            // The contenders that are never killed have lower places.
            let mut places = place..(place + count).min(CONTENDERS);
            places.try_for_each(|place| crew.replace(place))?;
        }
        Fault::StopContenders { place, count, span } => {
            (place..place + count).for_each(|place| crew.stop(place));
            thread::sleep(span);
            (place..place + count).for_each(|place| crew.cont(place));
        }
        Fault::StopServer { node, span } => {
            let server = servers.node(node);
            server.stop();
            thread::sleep(span);
            server.cont();
        }
        Fault::RestartServer { node, data, span } => {
            restart(servers.node(node), data, span, servers);
        }
        Fault::FailOver { key, by } => fail_over(servers, key, by),
        Fault::MoveSlot { key, target } => move_slot(servers, key, target),
        Fault::Delay { .. }
        | Fault::LoseFrame { .. }
        | Fault::BlackHole { .. }
        | Fault::Reset { .. }
        | Fault::HalfClose { .. } => break_the_network(servers, fault),
        Fault::FlushScripts { node } => {
            happened = order(servers.node(node), &["SCRIPT", "FLUSH"]);
        }
        Fault::KillClients { node, clients } => {
            let kind = match clients {
                Clients::All => "normal",
                Clients::Subscribed => "pubsub",
            };
            happened = order(servers.node(node), &["CLIENT", "KILL", "TYPE", kind]);
        }
        Fault::FlushAll { node } => happened = order(servers.node(node), &["FLUSHALL"]),
        Fault::DeleteKey { key } => {
            happened = order(server_of(servers, key), &["DEL", &full_key(key)]);
        }
        Fault::StealKey { key } => {
            let theft = [
                "SET",
                &full_key(key),
                "another library's",
                "PX",
                "500",
                "XX",
            ];
            happened = order(server_of(servers, key), &theft);
            thread::sleep(Duration::from_millis(500));
        }
        Fault::OutOfMemory { node, span } => {
            let server = servers.node(node);
            happened = order(server, &["CONFIG", "SET", "maxmemory", "1"]);
            thread::sleep(span);
            order(server, &["CONFIG", "SET", "maxmemory", "0"]);
        }
        Fault::Pause { node, what, span } => {
            let what = match what {
                Paused::All => "ALL",
                Paused::Writes => "WRITE",
            };
            let ms = span.as_millis().to_string();
            happened = order(servers.node(node), &["CLIENT", "PAUSE", &ms, what]);
            thread::sleep(span);
        }
        Fault::Sleep { node, span } => {
            let seconds = span.as_secs_f64().to_string();
            happened = order(servers.node(node), &["DEBUG", "SLEEP", &seconds]);
        }
    }
    Ok(happened)
}

/// Sends a command that injects a fault. Returns whether it had an effect: a server that is changing its role may refuse it, and
/// the key may not exist.
fn order(server: &RedisServer, command: &[&str]) -> bool {
    let done = server.try_cli(command);
    !matches!(done, Err(_) | Ok(Value::Nil | Value::Int(0)))
}

fn server_of(servers: &Servers, key: u64) -> &RedisServer {
    match &servers.kind {
        Kind::Cluster(cluster) => cluster.master_of(&full_key(key)),
        Kind::Sentinels(_) | Kind::Independent(_) => servers.node(0),
    }
}

fn restart(server: &RedisServer, data: Data, span: Duration, servers: &Servers) {
    server.kill9();
    if data == Data::Lost && servers.topology.is_single() {
        server.forget();
    }
    thread::sleep(span);
    server.restart();
}

fn fail_over(servers: &Servers, key: u64, by: Cause) {
    let key = full_key(key);
    match (&servers.kind, by) {
        (Kind::Sentinels(sentinels), Cause::Kill) => {
            let killed = sentinels.kill_primary();
            sentinels.failed_over(killed);
            sentinels.rejoin(killed);
        }
        (Kind::Sentinels(sentinels), Cause::Stop) => {
            let stopped = sentinels.primary();
            stopped.stop();
            sentinels.failed_over(stopped);
            stopped.cont();
            sentinels.whole();
        }
        (Kind::Sentinels(sentinels), Cause::Command) => sentinels.switch(),
        (Kind::Cluster(cluster), Cause::Kill) => {
            let killed = cluster.kill_master_of(&key);
            cluster.failed_over(killed);
            cluster.rejoin(killed);
        }
        (Kind::Cluster(cluster), Cause::Stop) => {
            let stopped = cluster.master_of(&key);
            stopped.stop();
            // The other nodes are asked, since the stopped one does not reply.
            let limit = Duration::from_secs(60);
            eventually_blocking(limit, "another node has taken over", || {
                let masters = cluster.masters();
                masters.len() == 3 && masters.iter().all(|node| node.port() != stopped.port())
            });
            stopped.cont();
            cluster.whole();
        }
        (Kind::Cluster(cluster), Cause::Command) => cluster.switch(&key),
        (Kind::Independent(_), _) => unreachable!("there is no other server"),
    }
}

fn move_slot(servers: &Servers, key: u64, target: u64) {
    let Kind::Cluster(cluster) = &servers.kind else {
        unreachable!("there are no slots");
    };
    let slot = slot_of(&full_key(key));
    let source = cluster.master_of_slot(slot).port();
    let mut others = cluster.masters();
    others.retain(|node| node.port() != source);
    others.sort_by_key(|node| node.port());
    let count = u64::try_from(others.len()).expect("a few");
    let target = others[usize::try_from(target % count).expect("a few")];
    let migration = cluster.migration(slot, target);
    migration.open();
    migration.move_keys();
    migration.close();
}

fn break_the_network(servers: &Servers, fault: Fault) {
    /// Long enough for a client to notice the fault, if it can.
    const NOTICED: Duration = Duration::from_millis(2_500);
    let (Fault::Delay { node, sides, .. }
    | Fault::LoseFrame { node, sides, .. }
    | Fault::BlackHole { node, sides, .. }
    | Fault::Reset { node, sides }
    | Fault::HalfClose { node, sides, .. }) = fault
    else {
        unreachable!("not a fault of the network");
    };
    let proxies = servers.proxies(node, sides);
    for proxy in proxies {
        match fault {
            Fault::Delay {
                direction, delay, ..
            } => proxy.delay(direction, delay),
            Fault::LoseFrame { direction, nth, .. } => {
                proxy.lose(direction, Frames::nth(nth), AfterLoss::Silence);
            }
            Fault::BlackHole { scope, .. } => proxy.black_hole(scope),
            Fault::HalfClose { direction, .. } => proxy.half_close(direction),
            _ => proxy.reset(),
        }
    }
    match fault {
        Fault::Delay { .. } | Fault::LoseFrame { .. } => thread::sleep(NOTICED),
        Fault::BlackHole { span, .. } => thread::sleep(span),
        _ => {}
    }
    proxies.iter().for_each(Proxy::heal);
    // Frames in flight keep their delay.
    if let Fault::Delay { delay, .. } = fault {
        thread::sleep(delay);
    }
}

/// Watches for servers that change their roles without a planned fault, until the end.
pub(crate) fn watch_roles(servers: &Servers, ledger: &Ledger) {
    /// The time between the death of a primary and the moment at which the new roles are visible.
    const BEFORE: Duration = Duration::from_secs(2);
    let mut last: Option<(Vec<u16>, Moment)> = None;
    while !ledger.state().is_over {
        let now = Moment::now();
        let is_planned = ledger.state().since.is_some();
        let roles = servers.roles();
        match (roles, &last) {
            (Some(roles), Some((before, at))) if roles != *before && !is_planned => {
                ledger.unplanned(Window {
                    from: at.before(BEFORE),
                    to: Moment::now(),
                });
                last = Some((roles, now));
            }
            (Some(roles), _) => last = Some((roles, now)),
            (None, _) => {}
        }
        thread::sleep(Duration::from_millis(300));
    }
}
