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
    After, Cluster, Proxy, RedisServer, Sentinels, Which, eventually_blocking,
    history::{Moment, Window},
    slot_of,
};

use crate::{
    crew::Crew,
    fault::{Clients, Data, Fault, Paused, Wipes, full_key, key},
    plan::{CONTENDERS, Plan, Round},
    topology::{Kind, Servers, Topology},
};

/// The faults so far; shared with the judges.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    // The beginning of the current fault, if there is one.
    since: Option<Moment>,
    news: News,
    counts: BTreeMap<&'static str, u64>,
    current: String,
    is_over: bool,
}

/// The windows that were closed since the last call.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) faults: Vec<Window>,
    /// The windows in which exclusion is not promised.
    pub(crate) excuses: Vec<Window>,
    /// The windows in which a key may have had two fencing clocks.
    pub(crate) other_clocks: Vec<Window>,
    /// The windows in which a key, or all keys, were lost.
    pub(crate) wiped: Vec<(Window, Option<&'static str>)>,
}

impl Ledger {
    /// Returns the news since the last call, and the latest point in time before which everything is known.
    pub(crate) fn news(&self) -> (News, Moment) {
        let mut state = self.state();
        let known = state.since.unwrap_or_else(Moment::now);
        (std::mem::take(&mut state.news), known)
    }

    /// Returns how often each kind of fault was injected.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.state().counts.clone()
    }

    /// Returns the names of the current faults, or `calm`.
    pub(crate) fn current(&self) -> String {
        self.state().current.clone()
    }

    /// Notes that no further fault will come.
    pub(crate) fn close(&self) {
        self.state().is_over = true;
    }

    fn is_over(&self) -> bool {
        self.state().is_over
    }

    fn begin(&self, faults: &[Fault]) {
        let mut state = self.state();
        state.since = Some(Moment::now());
        let names: Vec<&str> = faults.iter().map(|fault| fault.name()).collect();
        state.current = names.join(" + ");
        for name in names {
            *state.counts.entry(name).or_default() += 1;
        }
    }

    fn end(&self, faults: &[Fault], topology: Topology) {
        let mut state = self.state();
        let from = state.since.take().expect("it has begun");
        let window = Window {
            from,
            to: Moment::now(),
        };
        state.news.faults.push(window);
        if faults.iter().any(|fault| fault.excuses_overlaps(topology)) {
            state.news.excuses.push(window);
        }
        if faults
            .iter()
            .any(|fault| fault.makes_other_clocks(topology))
        {
            state.news.other_clocks.push(window);
        }
        let wiped = faults.iter().filter_map(|fault| fault.wipes(topology));
        let wiped = wiped.map(|wipes| match wipes {
            Wipes::All => (window, None),
            Wipes::Key(number) => (window, Some(key(number))),
        });
        state.news.wiped.extend(wiped);
        "calm".clone_into(&mut state.current);
    }

    /// Notes a fault that was not planned: the servers took a busy server for dead.
    fn unplanned(&self, window: Window) {
        let mut state = self.state();
        *state.counts.entry("fail-over by itself").or_default() += 1;
        state.news.faults.push(window);
        state.news.excuses.push(window);
        state.news.other_clocks.push(window);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is locked")
    }
}

/// Everything that faults can hit.
pub(crate) struct Nemesis<'a> {
    pub(crate) servers: &'a Servers,
    pub(crate) crew: &'a Crew,
    pub(crate) ledger: &'a Ledger,
    /// Gets a line for each fault.
    pub(crate) diary: File,
}

impl Nemesis<'_> {
    /// Carries out the plan until the deadline; the last calm before the deadline has no fault.
    pub(crate) fn work(mut self, plan: Plan, deadline: Instant) -> io::Result<()> {
        let last_calm = plan.last_calm();
        // The contenders get going first.
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
        thread::scope(|scope| {
            let (servers, crew) = (self.servers, self.crew);
            let start = |(&fault, after): (&Fault, Duration)| {
                scope.spawn(move || {
                    thread::sleep(after);
                    make(servers, crew, fault)
                })
            };
            // The second fault comes while the contenders still deal with the first.
            let after = [Duration::ZERO, Duration::from_millis(700)];
            let running: Vec<_> = round.faults.iter().zip(after).map(start).collect();
            for fault in running {
                fault.join().expect("a fault that can be made")?;
            }
            Ok::<(), io::Error>(())
        })?;
        self.ledger.end(&round.faults, self.servers.topology);
        writeln!(self.diary, "{} healed", Moment::now())
    }
}

/// Injects one fault, and heals it.
fn make(servers: &Servers, crew: &Crew, fault: Fault) -> io::Result<()> {
    match fault {
        Fault::KillContenders { place, count } => {
            // The spared contenders have lower places.
            let mut places = place..(place + count).min(CONTENDERS);
            return places.try_for_each(|place| crew.replace(place));
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
        Fault::FailOver { .. } | Fault::FailOverByStop { .. } | Fault::PlannedFailOver { .. } => {
            fail_over(servers, fault);
        }
        Fault::MoveSlot { key, target } => move_slot(servers, key, target),
        Fault::Delay { .. }
        | Fault::LoseFrame { .. }
        | Fault::BlackHole { .. }
        | Fault::Reset { .. }
        | Fault::HalfClose { .. } => break_the_network(servers, fault),
        Fault::FlushScripts { node } => order(servers.node(node), &["SCRIPT", "FLUSH"]),
        Fault::KillClients { node, clients } => {
            let kind = match clients {
                Clients::All => "normal",
                Clients::Subscribed => "pubsub",
            };
            order(servers.node(node), &["CLIENT", "KILL", "TYPE", kind]);
        }
        Fault::FlushAll { node } => order(servers.node(node), &["FLUSHALL"]),
        Fault::DeleteKey { key } => order(server_of(servers, key), &["DEL", &full_key(key)]),
        Fault::StealKey { key } => {
            let theft = [
                "SET",
                &full_key(key),
                "another library's",
                "PX",
                "500",
                "XX",
            ];
            order(server_of(servers, key), &theft);
            thread::sleep(Duration::from_millis(500));
        }
        Fault::OutOfMemory { node, span } => {
            let server = servers.node(node);
            order(server, &["CONFIG", "SET", "maxmemory", "1"]);
            thread::sleep(span);
            order(server, &["CONFIG", "SET", "maxmemory", "0"]);
        }
        Fault::Pause { node, what, span } => {
            let what = match what {
                Paused::All => "ALL",
                Paused::Writes => "WRITE",
            };
            let ms = span.as_millis().to_string();
            order(servers.node(node), &["CLIENT", "PAUSE", &ms, what]);
            thread::sleep(span);
        }
        Fault::Sleep { node, span } => {
            let seconds = span.as_secs_f64().to_string();
            order(servers.node(node), &["DEBUG", "SLEEP", &seconds]);
        }
    }
    Ok(())
}

/// Sends a command that injects a fault. A server that changes its role at this moment may refuse: then there is no fault.
fn order(server: &RedisServer, command: &[&str]) {
    server.try_cli(command).ok();
}

fn server_of(servers: &Servers, key: u64) -> &RedisServer {
    match &servers.kind {
        Kind::Cluster(cluster) => cluster.node_of(&full_key(key)),
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

fn fail_over(servers: &Servers, fault: Fault) {
    match &servers.kind {
        Kind::Sentinels(sentinels) => fail_over_by_sentinels(sentinels, fault),
        Kind::Cluster(cluster) => fail_over_in(cluster, fault),
        Kind::Independent(_) => unreachable!("no server could take over"),
    }
}

fn fail_over_by_sentinels(sentinels: &Sentinels, fault: Fault) {
    match fault {
        Fault::FailOver { .. } => {
            let killed = sentinels.kill_primary();
            sentinels.failed_over(killed);
            sentinels.rejoin(killed);
        }
        Fault::FailOverByStop { .. } => {
            let stopped = sentinels.primary();
            stopped.stop();
            sentinels.failed_over(stopped);
            stopped.cont();
            sentinels.whole();
        }
        _ => sentinels.switch(),
    }
}

fn fail_over_in(cluster: &Cluster, fault: Fault) {
    match fault {
        Fault::FailOver { key } => {
            let killed = cluster.kill_master_of(&full_key(key));
            cluster.failed_over(killed);
            cluster.rejoin(killed);
        }
        Fault::FailOverByStop { key } => {
            let stopped = cluster.node_of(&full_key(key));
            stopped.stop();
            // The other nodes are asked: the stopped one does not answer.
            eventually_blocking(
                Duration::from_secs(60),
                "another holder has the locks slots",
                || {
                    let masters = cluster.masters();
                    masters.len() == 3 && masters.iter().all(|node| node.port() != stopped.port())
                },
            );
            stopped.cont();
            cluster.whole();
        }
        Fault::PlannedFailOver { key } => cluster.switch(&full_key(key)),
        _ => {}
    }
}

fn move_slot(servers: &Servers, key: u64, target: u64) {
    let Kind::Cluster(cluster) = &servers.kind else {
        unreachable!("there are no slots");
    };
    let slot = slot_of(&full_key(key));
    let source = cluster.node_of_slot(slot).port();
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
    /// Long enough for a client to notice the fault, if it does.
    const NOTICED: Duration = Duration::from_millis(2_500);
    let (Fault::Delay { node, sides, .. }
    | Fault::LoseFrame { node, sides, .. }
    | Fault::BlackHole { node, sides, .. }
    | Fault::Reset { node, sides }
    | Fault::HalfClose { node, sides, .. }) = fault
    else {
        unreachable!("it is no fault of the network");
    };
    let proxies = servers.proxies(node, sides);
    for proxy in proxies {
        match fault {
            Fault::Delay {
                direction, delay, ..
            } => proxy.delay(direction, delay),
            Fault::LoseFrame { direction, nth, .. } => {
                proxy.lose(direction, Which::nth(nth), After::Silence);
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
    proxies.iter().for_each(Proxy::pass);
    // Frames in flight keep their delay.
    if let Fault::Delay { delay, .. } = fault {
        thread::sleep(delay);
    }
}

/// Watches until the end for servers that change their roles without a fault of the plan.
pub(crate) fn watch_roles(servers: &Servers, ledger: &Ledger) {
    /// The time between the death of a primary and the moment in which the new roles show.
    const BEFORE: Duration = Duration::from_secs(2);
    let mut last: Option<(Vec<u16>, Moment)> = None;
    while !ledger.is_over() {
        let now = Moment::now();
        let is_planned = ledger.state().since.is_some();
        let roles = servers.roles();
        match (roles, &last) {
            (Some(roles), Some((before, at))) if roles != *before && !is_planned => {
                let nanos = at
                    .since(Moment::from_nanos(0))
                    .saturating_sub(BEFORE)
                    .as_nanos();
                let from = u64::try_from(nanos).expect("a point in time");
                ledger.unplanned(Window {
                    from: Moment::from_nanos(from),
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
