//! One key that all tasks and processes contend for.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use lock_tests::{Process, RedisServer};
use tempfile::NamedTempFile;
use tokio::runtime::Runtime;

use crate::{
    cores::start_server,
    load::{Contender, Keys, Load, take_turns},
    lockers::{LockCore, TokioMutex},
    plot::{Panel, Plot},
    report::{
        self,
        Target::{AtLeast, AtMost},
    },
    sample::{Sample, Samples},
    usage::Watch,
    worker,
};

/// The number of tasks that contend in one process.
const TASKS: usize = 16;
/// The numbers of processes that contend, with one task each.
const PROCESSES: [u32; 3] = [2, 8, 32];
const MOST: u32 = PROCESSES[2];
/// The number of rounds of lock-core and of its baseline. Their medians are reported.
const ROUNDS: usize = 5;
/// The time in which the hand-offs of one round are counted.
const WINDOW: Duration = Duration::from_secs(1);
/// The time in which the PINGs of one round are counted.
const FLOOR_WINDOW: Duration = Duration::from_millis(600);

/// Long enough for every process to read its line and start.
const DELAY: Duration = Duration::from_millis(200);

/// A longer window for the other crates, which have only one round, because they are slow and their times vary more than those of
/// lock-core.
const PEER_WINDOW: Duration = Duration::from_secs(4);

pub(crate) fn run() -> Plot {
    in_one_process();
    between_processes()
}

fn in_one_process() {
    let server = start_server();
    let url = server.url();
    let mut watch = Watch::new(&server);
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let own = runtime.block_on(LockCore::connect(&url));
    let contenders = [
        Contender::new("lock-core", &runtime, own),
        Contender::new("tokio::sync::Mutex", &runtime, TokioMutex::default()),
    ];
    let load = Load {
        tasks: TASKS,
        keys: Keys::Same,
        window: WINDOW,
    };
    let all = take_turns(&contenders, load, ROUNDS, &mut watch);
    let [own, mutex] = &all;
    let title = format!(
        "hot key, {TASKS} tasks in one process, each holder yields once; ratio to tokio::sync::Mutex"
    );
    report::table(&title, "hand-offs", &contenders, &all, mutex);
    let (ratio, favour) = (own.ratio_to(mutex), own.favour());
    report::target("rate against tokio::sync::Mutex", ratio, AtLeast(0.5));
    // Tasks get the lock in the order of their requests.
    report::target("most to least favoured task", favour, AtMost(1.05));
}

fn between_processes() -> Plot {
    let server = start_server();
    let mut watch = Watch::new(&server);
    let mut teams = [
        Team::start("PING", 1, &server),
        Team::start("lock-core", MOST, &server),
        Team::start("rslock", MOST, &server),
        Team::start("distributed-lock-redis", MOST, &server),
    ];
    let contenders = teams.each_ref().map(|team| team.name);
    let labels: Vec<String> = PROCESSES.map(|count| format!("{count} processes")).into();
    let mut rates = contenders.map(|_| Vec::new());
    let mut worst_waits = contenders.map(|_| Vec::new());
    for processes in PROCESSES {
        let all = run_all(&mut teams, processes, &mut watch);
        report::title(&format!(
            "hot key, {processes} processes of one task each; ratio to PINGs in sequence"
        ));
        report::header("hand-offs");
        let [floor, own, ..] = &all;
        for (index, samples) in all.iter().enumerate() {
            report::line(contenders[index], samples, floor);
            rates[index].push(samples.rate());
            let worst = samples.times().max();
            worst_waits[index].push(worst.as_secs_f64() * 1e3);
        }
        let (ratio, favour) = (own.ratio_to(floor), own.favour());
        // Ratios that an earlier version reached: the targets in docs/performance.md.
        let reached = match processes {
            ..=2 => 0.48,
            3..=8 => 0.32,
            _ => 0.27,
        };
        report::target("rate against PINGs", ratio, AtLeast(reached));
        // Processes queue, too, but one that the scheduler delays joins the queue later.
        report::target("most to least favoured process", favour, AtMost(1.15));
        // Two scripts, and the commands that they call.
        report::target("server commands per hand-off", own.commands(), AtMost(10.0));
    }
    Plot {
        contenders: contenders.into(),
        panels: [
            Panel {
                title: "hand-offs per second",
                labels: labels.clone(),
                values: rates.into(),
            },
            Panel {
                title: "worst wait in ms",
                labels,
                values: worst_waits.into(),
            },
        ],
    }
}

fn run_all(teams: &mut [Team; 4], processes: u32, watch: &mut Watch) -> [Samples; 4] {
    let mut all = [(); 4].map(|()| Samples::default());
    let [pings, own, rslock, peer] = teams;
    for _ in 0..ROUNDS {
        all[0].push(pings.run(1, FLOOR_WINDOW, watch));
        all[1].push(own.run(processes, WINDOW, watch));
    }
    all[2].push(rslock.run(processes, PEER_WINDOW, watch));
    all[3].push(peer.run(processes, PEER_WINDOW, watch));
    all
}

/// The processes of one contender.
struct Team {
    name: &'static str,
    processes: Vec<Process>,
    /// Deleted when the processes have ended.
    _last_holder: NamedTempFile,
}

impl Team {
    fn start(name: &'static str, count: u32, server: &RedisServer) -> Self {
        let last_holder = NamedTempFile::new().expect("a temporary file");
        let path = last_holder.path().to_str().expect("a path in UTF-8");
        let start = |number: u32| {
            let more = [&number.to_string(), path];
            worker::start(name, &server.url(), &more)
        };
        Self {
            name,
            processes: (0..count).map(start).collect(),
            _last_holder: last_holder,
        }
    }

    /// Lets the first `count` processes contend; the others are idle.
    fn run(&mut self, count: u32, window: Duration, watch: &mut Watch) -> Sample {
        let count = usize::try_from(count).expect("a few");
        let processes = &mut self.processes[..count];
        let (line, start) = worker::window_line(DELAY, window);
        for process in &mut *processes {
            process.say(&line);
        }
        sleep_until(start);
        let ((), server) = watch.during(|| sleep_until(start + window));
        let reports = processes
            .iter_mut()
            .map(|process| worker::to_work(&process.line()));
        let (workers, cpus): (Vec<_>, Vec<Duration>) = reports.unzip();
        Sample {
            elapsed: window,
            workers,
            server,
            clients: cpus.iter().sum(),
        }
    }
}

fn sleep_until(moment: Instant) {
    thread::sleep(moment.saturating_duration_since(Instant::now()));
}
