//! A process that repeatedly takes locks in every possible way, and records the outcome of each attempt.
//!
//! ```text
//! soak contend <lock url> <history> <process> <place> <register> <seed> <longest ttl in ms> <all|exclusive>
//! ```
//!
//! Its log goes to standard error. It prints `ready` when it is connected, and starts at the next line of input. It replies to
//! `tasks` with the number of its tasks, and ends at `stop` or at the end of its input.

use std::{
    error::Error,
    io::{self, BufRead, Write},
    panic,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use lock_core::LockManager;
use lock_tests::{Random, history::Recorder};
use tokio::{
    runtime::Handle,
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{keys::Kept, register::Register, ways::Way};

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// The number of tasks that take the shared keys. Two more tasks have a private key each.
const TASKS: u64 = 5;

/// The longest time for which the servers may be down when a process starts.
const CONNECTED_WITHIN: Duration = Duration::from_secs(120);

/// The state that all tasks of the process share.
pub(crate) struct Contender {
    pub(crate) locks: LockManager,
    pub(crate) recorder: Recorder,
    pub(crate) register: Register,
    attempts: AtomicU64,
}

/// Runs with the arguments after `contend`.
pub(crate) async fn contend(arguments: &[&str]) -> Result<(), Failure> {
    let [url, history, process, place, register, seed, longest, modes] = arguments else {
        return Err("the wrong number of arguments".into());
    };
    log();
    let (process, place): (u32, u64) = (process.parse()?, place.parse()?);
    let longest = Duration::from_millis(longest.parse()?);
    let keys = Kept::wanted_by(place, *modes == "all").into_iter();
    let keys: Vec<Kept> = keys.map(|key| key.at_most(longest)).collect();
    let private = [Kept::private(process), Kept::alone(process)].map(|key| key.at_most(longest));
    let contender = Arc::new(Contender {
        locks: timeout(CONNECTED_WITHIN, connect(url, longest)).await?,
        recorder: Recorder::open(Path::new(history), process)?,
        register: Register::connect(register).await?,
        attempts: AtomicU64::new(0),
    });
    println("ready")?;
    io::stdin().read_line(&mut String::new())?;
    let (stop, stopped) = watch::channel(());
    let mut ending = stopped.clone();
    let random = Random::new(seed.parse()?).branch(process.into());
    let mut running = JoinSet::new();
    for task in 0..TASKS {
        let (contender, keys) = (Arc::clone(&contender), keys.clone());
        running.spawn(contender.work(keys, random.branch(task), stopped.clone()));
    }
    for (task, key) in (TASKS..).zip(private) {
        let work = Arc::clone(&contender).work(vec![key], random.branch(task), stopped.clone());
        running.spawn(work);
    }
    drop(stopped);
    let runtime = Handle::current();
    thread::spawn(move || obey(&runtime, stop));
    // The sender is dropped to end the work, so an error is the expected result.
    ending.changed().await.ok();
    contender.locks.shutdown(Duration::from_secs(1)).await;
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

/// Logs at all levels, so that every message is searched for secrets.
fn log() {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(io::stderr)
        .with_ansi(false)
        .init();
    // No backtrace: the first one reads the whole program into memory, which would look like growth.
    panic::set_hook(Box::new(|panic| say(&panic.to_string())));
}

async fn connect(url: &str, longest: Duration) -> LockManager {
    loop {
        // After a restart, one of several servers has no vote for twice the longest ttl and 5 s.
        let builder = LockManager::builder().ttl(longest).max_ttl(longest);
        match builder.connect(url).await {
            Ok(locks) => return locks,
            Err(error) => say(&format!("not connected: {error}")),
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Obeys the lines of input until `stop` or the end. If the soak has gone, its replies are lost, and the process still ends.
fn obey(runtime: &Handle, stop: watch::Sender<()>) {
    for line in io::stdin().lock().lines() {
        match line.as_deref() {
            Ok("tasks") => {
                let tasks = runtime.metrics().num_alive_tasks();
                println(&format!("{tasks}")).ok();
            }
            _ => break,
        }
    }
    drop(stop);
}

impl Contender {
    async fn work(
        self: Arc<Self>,
        keys: Vec<Kept>,
        mut random: Random,
        stopped: watch::Receiver<()>,
    ) -> io::Result<()> {
        while stopped.has_changed().is_ok() {
            let key = Kept::choose(&keys, &mut random);
            let way = Way::choose(key.usage, &mut random);
            let was_held = way.take(&self, key, &mut random).await?;
            // After a failure, the task must not retry in a busy loop. After a hold, it gives way to others now and then.
            sleep(if was_held {
                random.millis(0, 20)
            } else {
                random.millis(10, 60)
            })
            .await;
        }
        Ok(())
    }

    /// Returns the number of a new attempt.
    pub(crate) fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed)
    }
}

/// Writes a line to the log.
pub(crate) fn say(line: &str) {
    writeln!(io::stderr(), "{line}").ok();
}

fn println(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}
