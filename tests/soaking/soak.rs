//! Runs the contenders, the nemesis and the checks together.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use lock_tests::history::{Checker, Invariant, Moment, Tail, events};

use crate::{
    contend::Failure,
    crew::{Crew, Orders},
    growth::{Growth, Usage},
    keys::requirements,
    leftovers::leftovers,
    nemesis::{Ledger, Nemesis, watch_roles},
    plan::{CONTENDERS, Plan},
    register::Registers,
    report::Report,
    secrets::Log,
    settings::Settings,
    topology::{Servers, Topology},
};

/// The time within which an event is written to the history, unless its process is stopped.
const LATENESS: Duration = Duration::from_secs(3);

/// The number of bytes of the history that stay on the disk.
const HISTORY_KEPT: u64 = 256 << 20;

/// The process whose tasks are counted: the first one, which is never replaced.
const COUNTED: u64 = 0;

/// The time after which all resources are in use.
const WARM: Duration = Duration::from_secs(10);

/// The time between two status lines.
const STATUS: Duration = Duration::from_secs(15);

/// The checks of the contenders' history and log.
struct Judge<'a> {
    ledger: &'a Ledger,
    crew: &'a Crew,
    tail: Tail,
    log: Log,
}

/// Runs with these settings, with its files in this folder.
pub(crate) fn soak(settings: &Settings, folder: &Path) -> Result<Report, Failure> {
    let (topology, longest_ttl) = (settings.topology, settings.longest_ttl());
    let servers = Servers::start(topology);
    let registers = Registers::start();
    let (history, log) = (folder.join("history"), folder.join("contenders"));
    let ledger = Ledger::new(Checker::new(move |key| {
        requirements(key, topology, longest_ttl)
    }));
    let tail = Tail::open(&history)?;
    let crew = Crew::start(Orders {
        urls: (0..CONTENDERS).map(|place| servers.url(place)).collect(),
        history,
        register: registers.url(),
        seed: settings.seed,
        longest_ttl,
        has_modes: topology.has_modes(),
        log: log.clone(),
    })?;
    if topology == Topology::Redlock {
        // The servers have just been started, so none of them votes yet.
        thread::sleep(topology.quarantine());
    }
    let mut judge = Judge {
        ledger: &ledger,
        crew: &crew,
        tail,
        log: Log::open(&log)?,
    };
    crew.begin();
    let nemesis = Nemesis {
        servers: &servers,
        crew: &crew,
        ledger: &ledger,
        diary: File::create(folder.join("faults"))?,
    };
    let plan = Plan::new(topology, longest_ttl, settings.seed);
    let warm = WARM.min(settings.span() / 2);
    let measure = || Usage::measure(&crew.ids(), crew.tasks(COUNTED), &servers);
    let mut early = None;
    thread::scope(|scope| {
        let (started, mut shown) = (Instant::now(), Instant::now());
        let deadline = started + settings.span();
        let broken = scope.spawn(move || nemesis.work(plan, deadline));
        scope.spawn(|| watch_roles(&servers, &ledger));
        while !broken.is_finished() {
            judge.look(LATENESS);
            servers.clear_logs_of_proxies();
            // The early sample is taken in a calm, in which all contenders reply at once.
            if early.is_none() && started.elapsed() > warm && ledger.is_calm() {
                early = Some(measure());
            }
            if shown.elapsed() > STATUS {
                shown = Instant::now();
                let passed = started.elapsed().as_secs();
                writeln!(io::stdout(), "{passed:>6} s  {}", ledger.status())?;
            }
            thread::sleep(Duration::from_millis(100));
        }
        ledger.close();
        broken.join().expect("the nemesis does not panic")
    })?;
    let early =
        early.ok_or_else(|| io::Error::other("no calm was long enough to measure the growth"))?;
    let growth = early.growth(&measure());
    let excessive = growth.iter().filter(|growth| growth.is_excessive());
    ledger.report(Invariant::NoLeak, excessive.map(Growth::to_string));
    ledger.report(Invariant::Service, crew.deserters());
    ledger.report(Invariant::Service, crew.end());
    let left = leftovers(&servers, longest_ttl + Duration::from_secs(1));
    ledger.report(Invariant::NothingLeft, left);
    ledger.report(Invariant::FencedStore, registers.missing());
    judge.look(Duration::ZERO);
    let log = judge.log;
    let (tally, faults) = ledger.end();
    let report = Report {
        tally,
        faults,
        log,
        growth,
        increments: registers.counts(),
    };
    if report.first_violated().is_some() {
        servers.save_logs(folder)?;
    }
    Ok(report)
}

impl Judge<'_> {
    /// Reads the new events, and judges those that are older than this.
    fn look(&mut self, age: Duration) {
        let (killed, until) = (self.crew.killed(), Moment::now().before(age));
        self.ledger.judge(until, |checker| {
            for (process, at) in killed {
                checker.ended(process, at);
            }
            checker.take(events(&self.tail.lines()));
        });
        self.tail.prune(HISTORY_KEPT);
        self.ledger.report(Invariant::NoLeak, self.log.look());
    }
}
