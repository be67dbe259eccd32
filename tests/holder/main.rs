//! A process that takes locks again and again, and records the outcome of each attempt.
//!
//! ```text
//! holder <lock url> <history> <process> <key>,… <tasks> <ttl in ms> <hold in ms>
//! ```
//!
//! Each task takes the keys in turn, and holds each of them for this time. After an error, which the history records, it tries the next
//! key. The process prints `ready` when it is connected, begins at the next line of input, and ends at the second one.

use std::{
    env,
    error::Error,
    io::{self, Write},
    path::Path,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use lock_core::{Lease, LockError, LockManager, LockOptions};
use lock_tests::{
    Mode,
    history::{Moment, Recorder, Step},
};
use tokio::{sync::watch, task::JoinSet, time::sleep};

type Failure = Box<dyn Error + Send + Sync>;

const USAGE: &str =
    "holder <lock url> <history> <process> <key>,… <tasks> <ttl in ms> <hold in ms>";

/// Longer than any fail-over. The history records a wait that ends, and another wait begins.
const WAIT: Duration = Duration::from_secs(30);

/// The pause between an error and the next attempt, so that immediate errors do not become a busy loop.
const PAUSE: Duration = Duration::from_millis(20);

struct Holder {
    locks: LockManager,
    recorder: Recorder,
    attempts: AtomicU64,
    keys: Vec<String>,
    options: LockOptions,
    hold: Duration,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [url, history, process, keys, tasks, ttl, hold] = arguments.as_slice() else {
        return Err(USAGE.into());
    };
    let tasks: usize = tasks.parse()?;
    let holder = Arc::new(Holder {
        locks: LockManager::connect(url).await?,
        recorder: Recorder::open(Path::new(history), process.parse()?)?,
        attempts: AtomicU64::new(0),
        keys: keys.split(',').map(str::to_owned).collect(),
        options: LockOptions::new(Duration::from_millis(ttl.parse()?)).wait(WAIT),
        hold: Duration::from_millis(hold.parse()?),
    });
    println("ready")?;
    io::stdin().read_line(&mut String::new())?;
    let (stop, stopped) = watch::channel(());
    let mut running = JoinSet::new();
    for task in 0..tasks {
        running.spawn(holder.clone().work(task, stopped.clone()));
    }
    thread::spawn(move || {
        // The process also ends with its input, when the test has ended.
        io::stdin().read_line(&mut String::new()).ok();
        drop(stop);
    });
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

impl Holder {
    async fn work(
        self: Arc<Self>,
        task: usize,
        mut stopped: watch::Receiver<()>,
    ) -> io::Result<()> {
        // Each task begins at another key, so that the tasks do not always want the same key.
        for key in self.keys.iter().cycle().skip(task % self.keys.len()) {
            let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
            self.recorder
                .record(attempt, key, Step::Called(Mode::Exclusive))?;
            let holds = AtomicBool::new(false);
            let mut holding = pin!(self.hold(attempt, key, &holds));
            let step = tokio::select! {
                biased;
                step = &mut holding => step?,
                _ = stopped.changed() => {
                    // If the future of a holder were dropped, the history would lack its release.
                    if holds.load(Ordering::Relaxed) { holding.await? } else { Step::Failed }
                }
            };
            self.recorder.record(attempt, key, step)?;
            if stopped.has_changed().is_err() {
                return Ok(());
            }
            if step == Step::Failed {
                sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    /// Takes and releases a lock. Returns the last step.
    async fn hold(&self, attempt: u64, key: &str, holds: &AtomicBool) -> io::Result<Step> {
        let body = async |lease: Lease| {
            holds.store(true, Ordering::Relaxed);
            let token = lease.fencing_token().into();
            let valid_until = Moment::end_of(&lease);
            let acquired = Step::Acquired {
                token,
                permit: None,
                valid_until,
            };
            self.recorder.record(attempt, key, acquired)?;
            sleep(self.hold).await;
            let valid_until = Moment::end_of(&lease);
            let release = Step::ReleaseCalled { valid_until };
            self.recorder.record(attempt, key, release).map(drop)
        };
        match self.locks.run(key, self.options.clone(), body).await {
            Ok(done) => done.map(|()| Step::Released),
            Err(LockError::Lost { .. }) => Ok(Step::Lost),
            Err(_) => Ok(Step::Failed),
        }
    }
}

fn println(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}
