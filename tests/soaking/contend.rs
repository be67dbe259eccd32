//! A process that takes locks in every possible way, again and again, and records the outcome of each attempt.
//!
//! ```text
//! soak contend <lock url> <history> <process> <place> <register> <seed> <longest ttl in ms> <all|exclusive>
//! ```
//!
//! Its log goes to its standard error. It prints `ready` when it is connected, and begins at the next line of input. It answers
//! `tasks` with the number of its tasks, and ends at `stop` or at the end of its input.

use std::{
    env,
    error::Error,
    io::{self, BufRead, Write},
    net::SocketAddr,
    panic,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use lock_core::{Lease, LockManager};
use lock_tests::{
    Random,
    history::{Moment, Recorder, Step},
};
use tokio::{
    runtime::Handle,
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    keys::Kept,
    register::{FenceError, PERMIT, Register},
    ways::Way,
};

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

const USAGE: &str = "soak contend <lock url> <history> <process> <place> <register> <seed> <longest ttl in ms> <all|exclusive>";

/// The number of tasks of a process that take its shared keys; each of two more tasks has a private key.
const TASKS: u64 = 5;

/// The longest time for which the servers may be down when a process is started again.
const CONNECTED_WITHIN: Duration = Duration::from_secs(120);

/// The state that all tasks of the process share.
pub(crate) struct Contender {
    pub(crate) locks: LockManager,
    recorder: Recorder,
    attempts: AtomicU64,
    register: SocketAddr,
    // The unused connections to registers: an exchange that is dropped half-way closes its connection.
    idle: Mutex<Vec<Register>>,
}

/// Attempts at some keys at a time; one key as a rule.
pub(crate) type Attempts = Vec<(Kept, u64)>;

/// Runs with the arguments after `contend`.
pub(crate) async fn contend(arguments: &[String]) -> Result<(), Failure> {
    let [url, history, process, place, register, seed, longest, modes] = arguments else {
        return Err(USAGE.into());
    };
    log();
    let (process, place): (u32, u64) = (process.parse()?, place.parse()?);
    let longest = Duration::from_millis(longest.parse()?);
    let keys = Kept::wanted_by(place, modes == "all").into_iter();
    let keys: Vec<Kept> = keys.map(|key| key.at_most(longest)).collect();
    let private = [Kept::private(process), Kept::alone(process)].map(|key| key.at_most(longest));
    let contender = Arc::new(Contender {
        locks: timeout(CONNECTED_WITHIN, connect(url, longest)).await?,
        recorder: Recorder::open(Path::new(history), process)?,
        attempts: AtomicU64::new(0),
        register: register.parse()?,
        idle: Mutex::default(),
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
    // No backtrace: the first one reads the whole program into memory, and would look like growth.
    panic::set_hook(Box::new(|panic| say(&panic.to_string())));
}

async fn connect(url: &str, longest: Duration) -> LockManager {
    loop {
        // One of several servers has no vote after a restart for twice the longest ttl, and 5 s.
        let builder = LockManager::builder().ttl(longest).max_ttl(longest);
        match builder.connect(url).await {
            Ok(locks) => return locks,
            Err(error) => say(&format!("not connected: {error}")),
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Obeys the lines of its input until `stop` or the end. If the soak is gone, its replies are lost, and it still ends.
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
            let got_it = way.take(&self, key, &mut random).await?;
            // A task that failed must not try again in a busy loop. A task that had the lock lets others go first now and then.
            sleep(if got_it {
                random.millis(0, 20)
            } else {
                random.millis(10, 60)
            })
            .await;
        }
        Ok(())
    }

    /// Records that these keys are asked for.
    pub(crate) fn call(&self, keys: impl IntoIterator<Item = Kept>) -> io::Result<Attempts> {
        let call = |key: Kept| {
            let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
            self.recorder
                .record(attempt, &key.name, Step::Called(key.mode))?;
            Ok((key, attempt))
        };
        keys.into_iter().map(call).collect()
    }

    /// Records the same step for all attempts.
    pub(crate) fn record(&self, attempts: &Attempts, step: Step) -> io::Result<()> {
        for (key, attempt) in attempts {
            self.recorder.record(*attempt, &key.name, step)?;
        }
        Ok(())
    }

    /// Records that the keys are held, works under the locks, and records that they are about to be released.
    pub(crate) async fn hold(
        &self,
        attempts: &Attempts,
        lease: &Lease,
        span: Duration,
    ) -> io::Result<()> {
        let since = self.begin(attempts, lease)?;
        self.count_up(lease, since).await?;
        if !span.is_zero() {
            sleep(span).await;
        }
        self.about_to_release(attempts, lease)
    }

    /// Records that the keys are held; returns since when.
    pub(crate) fn begin(&self, attempts: &Attempts, lease: &Lease) -> io::Result<Moment> {
        let since = Moment::now();
        let fences = lease.fences();
        let valid_until = end_of(lease);
        for (key, attempt) in attempts {
            let fence = fences.iter().find(|(own, _)| own.to_string() == key.name);
            let (_, fence) = fence.expect("each key has its token");
            let acquired = Step::Acquired {
                token: fence.token.into(),
                permit: fence.permit,
                valid_until,
            };
            self.recorder.record(*attempt, &key.name, acquired)?;
        }
        Ok(since)
    }

    /// Does the work under each key of the lease, which is held since `since`.
    pub(crate) async fn count_up(&self, lease: &Lease, since: Moment) -> io::Result<()> {
        for (key, fence) in lease.fences() {
            let name = match fence.permit {
                Some(permit) => format!("{key}{PERMIT}{permit}"),
                None => key.to_string(),
            };
            let mut register = self.register(&name).await?;
            // A shared holder does not write, because others would write at the same time.
            let updated = if fence.holder == 0 {
                register.look(fence).await.map(drop)
            } else {
                register.count_up(fence).await
            };
            match updated {
                Err(FenceError::Io(error)) => return Err(error),
                // The lease was still valid after the reply had arrived, so the refusal is wrong.
                Err(FenceError::Refused(token)) if !lease.is_lost() => {
                    register.complain(token, since).await?;
                }
                Ok(()) | Err(FenceError::Refused(_)) => {}
            }
            self.idle.lock().expect("no poison").push(register);
        }
        Ok(())
    }

    pub(crate) fn about_to_release(&self, attempts: &Attempts, lease: &Lease) -> io::Result<()> {
        let valid_until = end_of(lease);
        self.record(attempts, Step::ReleaseCalled { valid_until })
    }

    async fn register(&self, key: &str) -> io::Result<Register> {
        let idle = self.idle.lock().expect("no poison").pop();
        match idle {
            Some(register) => Ok(register.of(key)),
            None => Register::connect(self.register, key).await,
        }
    }
}

/// The end of the lease's validity, never later than the truth: the clock is read first.
fn end_of(lease: &Lease) -> Moment {
    let now = Moment::now();
    now.after(lease.remaining())
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

/// The arguments of the process, without the program's name.
pub(crate) fn arguments() -> Vec<String> {
    env::args().skip(1).collect()
}
