//! Runs contenders, nemesis and judges together.

use std::{
    fs::File,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use lock_tests::history::{Moment, Running, Tail, events};

use crate::{
    contend::Failure,
    crew::{Crew, Orders},
    growth::{Growth, When},
    keys::demands,
    leftovers::leftovers,
    nemesis::{Ledger, Nemesis, watch_roles},
    plan::{CONTENDERS, Plan},
    register::{Complaint, Registers},
    report::{Progress, Report, Verdict},
    secrets::Log,
    settings::Settings,
    topology::{Servers, Topology},
};

/// The time after which an event has been recorded, unless its process was stopped.
const LATENESS: Duration = Duration::from_secs(3);

/// The number of bytes of the history that stay on the disk.
const HISTORY_KEPT: u64 = 256 << 20;

/// The process with tasks that are counted: the first one that is never replaced.
const COUNTED: u64 = 0;

/// The time after which everything is in use.
const WARM: Duration = Duration::from_secs(10);

/// The checks of everything that the contenders and the servers do.
struct Judges<'a> {
    running: Running,
    tail: Tail,
    log: Log,
    ledger: &'a Ledger,
    crew: &'a Crew,
    registers: &'a Registers,
    complaints: Vec<Complaint>,
    verdict: Verdict,
    most_kept: usize,
}

/// Runs with these settings, with its files in this folder. Returns the verdict and the text of the report.
pub(crate) fn soak(settings: &Settings, folder: &Path) -> Result<(Verdict, String), Failure> {
    let servers = Servers::start(settings.topology);
    let registers = Registers::start()?;
    let (history, log) = (folder.join("history"), folder.join("contenders"));
    let (topology, longest_ttl) = (settings.topology, settings.longest_ttl);
    let ledger = Ledger::default();
    let tail = Tail::open(&history)?;
    let crew = Crew::start(Orders {
        urls: (0..CONTENDERS).map(|place| servers.url(place)).collect(),
        history,
        register: registers.address().to_string(),
        seed: settings.seed,
        longest_ttl,
        has_modes: topology.has_modes(),
        log: log.clone(),
    })?;
    if settings.topology == Topology::Redlock {
        // All servers have just been started, so none of them votes yet.
        thread::sleep(settings.topology.quarantine());
    }
    let mut judges = Judges {
        running: Running::new(move |key| demands(key, topology, longest_ttl)),
        tail,
        log: Log::open(&log)?,
        ledger: &ledger,
        crew: &crew,
        registers: &registers,
        complaints: Vec::new(),
        verdict: Verdict::default(),
        most_kept: 0,
    };
    crew.begin();
    let mut growth = Growth::default();
    let nemesis = Nemesis {
        servers: &servers,
        crew: &crew,
        ledger: &ledger,
        diary: File::create(folder.join("faults"))?,
    };
    let plan = Plan::new(settings.topology, longest_ttl, settings.seed);
    let warm = WARM.min(settings.span / 2);
    thread::scope(|scope| {
        let deadline = Instant::now() + settings.span;
        let broken = scope.spawn(move || nemesis.work(plan, deadline));
        scope.spawn(|| watch_roles(&servers, &ledger));
        let mut progress = Progress::start();
        let started = Instant::now();
        let mut is_warm = false;
        while !broken.is_finished() {
            judges.look();
            progress.show(judges.running.tally(), &ledger)?;
            servers.clear_logs_of_proxies();
            // The early sample is taken in a calm, in which all contenders answer at once.
            if !is_warm && started.elapsed() > warm && ledger.current() == "calm" {
                is_warm = true;
                growth.look(When::Early, &crew.ids(), crew.tasks(COUNTED), &servers);
            }
            thread::sleep(Duration::from_millis(100));
        }
        ledger.close();
        broken.join().expect("a nemesis that knows what it does")
    })?;
    growth.look(When::Late, &crew.ids(), crew.tasks(COUNTED), &servers);
    judges.verdict.add(7, growth.excesses());
    judges.verdict.add(6, crew.deserters());
    judges.verdict.add(6, crew.end());
    let left = leftovers(&servers, longest_ttl + Duration::from_secs(1));
    judges.verdict.add(5, left);
    judges.finish();
    let text = Report {
        tally: judges.running.tally(),
        ledger: &ledger,
        log: &judges.log,
        growth: &growth,
        verdict: &judges.verdict,
        increments: registers.counts(),
        most_kept: judges.most_kept,
    }
    .text();
    if judges.verdict.first_offended().is_some() {
        servers.save_logs(folder)?;
    }
    Ok((judges.verdict, text))
}

impl Judges<'_> {
    /// Reads the new events, and judges those that are old enough.
    fn look(&mut self) {
        let (news, known) = self.ledger.news();
        for (number, at) in self.crew.killed() {
            self.running.ended(number, at);
        }
        for window in news.faults {
            self.running.broken(window);
        }
        for window in news.excuses {
            self.running.excused(window);
        }
        for window in news.other_clocks {
            self.running.had_other_clocks(window);
        }
        for (window, key) in news.wiped {
            self.running.wiped(window, key.map(str::to_owned));
        }
        self.running.take(events(&self.tail.lines()));
        let late = Moment::from_nanos(nanos(Moment::now()) - nanos_of(LATENESS));
        self.running.judge(known.min(late));
        self.read_complaints();
        self.tail.prune(HISTORY_KEPT);
        self.log.look();
        self.most_kept = self.most_kept.max(self.running.kept());
    }

    /// Judges the rest, after all contenders have ended.
    fn finish(&mut self) {
        self.look();
        self.running.judge(Moment::now());
        self.read_complaints();
        self.verdict.add_tally(self.running.tally());
        self.verdict.add(4, self.registers.missing());
        self.verdict.add(7, self.log.found().iter().cloned());
    }

    /// Counts the complaints: a holder that is refused with a valid lease has too small a token, or another holder has the lock.
    fn read_complaints(&mut self) {
        self.complaints.extend(self.registers.complaints());
        let judged = self.running.judged();
        let (ripe, young): (Vec<_>, Vec<_>) = self
            .complaints
            .drain(..)
            .partition(|complaint| complaint.held.to <= judged);
        self.complaints = young;
        for Complaint {
            held,
            key,
            token,
            largest,
        } in ripe
        {
            if !self.running.is_excused(&key, held) {
                let line = format!(
                    "{} the register of {key} refused {token}, whose lease was valid, after {largest}",
                    held.to
                );
                self.verdict.add(4, [line]);
            }
        }
    }
}

fn nanos(moment: Moment) -> u64 {
    nanos_of(moment.since(Moment::from_nanos(0)))
}

fn nanos_of(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).expect("a span of a test")
}
