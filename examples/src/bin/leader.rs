//! One of several processes leads. The others print which one it is, and the next of them takes over when it ends.
//!
//! ```text
//! LOCK_URL=redis://127.0.0.1 cargo run -p examples --bin leader -- 10.0.3.7:8080
//! ```
//!
//! Start it in three terminals, each with another address. Then try one of these with the process id that the leader printed:
//!
//! - `kill PID`, or ctrl-c: the next process leads at once, by one message;
//! - `kill -9 PID`: the next one leads when the lease has ended, after ten seconds at most;
//! - `kill -STOP PID`, and `kill -CONT PID` when the next one leads: the old one takes no further step, and waits again.
//!
//! The leader's work is to add a step to a journal each second. The journal is a file that refuses a step of an earlier term, by the
//! fencing token: `tail -f /tmp/leader.journal` (`JOURNAL`) shows the terms and their steps.
//!
//! Without `LOCK_URL`, the locks are in memory, and one process leads alone. `TTL_MS` is how long the lease lasts unless it is
//! renewed, and defaults to 10,000. `STEP_MS` is the pause between two steps, and defaults to 1,000.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{
    env,
    fs::File,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use examples::shutdown_signal;
use lock_core::{LockError, LockManager, distributed_lock, fenced::Fence};
use tokio::time::sleep;

/// The pause between two checks of the leader, and between a term and the next wait.
const PAUSE: Duration = Duration::from_secs(1);

/// How long the release may take when the process ends.
const GRACE: Duration = Duration::from_secs(5);

struct Candidate {
    label: String,
    locks: LockManager,
    ttl: Duration,
    step: Duration,
    journal: PathBuf,
}

/// One term. If the lease is lost, or the process is told to end, this future is dropped at its `await`.
#[distributed_lock(key = "leader", ttl = me.ttl, wait = "forever", lease = lease, locks = me.locks)]
async fn lead(me: &Candidate) -> Result<(), LockError> {
    let label = &*me.label;
    println!(
        "{label}: leads with fencing token {}",
        lease.fencing_token()
    );
    let fence = lease.fence();
    let mut journal = Journal::new(&me.journal, label);
    loop {
        match journal.step(fence) {
            Ok(true) => sleep(me.step).await,
            Ok(false) => {
                println!(
                    "{label}: the journal refuses the token {}, since another process leads",
                    fence.token
                );
                return Ok(());
            }
            // A leader that cannot work ends its term, so that another process can try.
            Err(error) => {
                println!("{label}: cannot write to the journal: {error}");
                return Ok(());
            }
        }
    }
}

/// Waits for one term after another.
async fn run_for_leader(me: &Candidate) -> Result<(), LockError> {
    loop {
        match lead(me).await {
            Ok(()) => {}
            // A retry cannot fix a wrong setting.
            Err(error @ LockError::Invalid { .. }) => return Err(error),
            Err(error) => println!("{}: does not lead: {error}", me.label),
        }
        sleep(PAUSE).await;
    }
}

/// Prints which other process leads, whenever that has changed.
async fn follow(me: &Candidate) {
    let mut known = None;
    loop {
        // While the server does not answer, the leader is as last seen.
        if let Ok(seen) = me.locks.inspect("leader").await {
            let leader = seen.map(|lock| lock.holder.to_string());
            if let Some(leader) = &leader
                && known.as_ref() != Some(leader)
                && *leader != me.label
            {
                println!("{}: follows {leader}", me.label);
            }
            known = leader;
        }
        sleep(PAUSE).await;
    }
}

/// A file with a line for the beginning of a term, for each of its steps, and for its end. It accepts no line of an earlier term.
struct Journal<'a> {
    path: &'a Path,
    label: &'a str,
    /// The term that has begun.
    term: Option<Fence>,
}

/// The last line of the journal.
#[derive(Default)]
struct Last {
    token: u64,
    holder: u64,
    steps: u64,
}

impl<'a> Journal<'a> {
    fn new(path: &'a Path, label: &'a str) -> Self {
        let term = None;
        Self { path, label, term }
    }

    /// Announces the term, unless that was done before, and adds a step to the journal. Returns whether the journal accepted it:
    /// the journal refuses an earlier term.
    fn step(&mut self, fence: Fence) -> io::Result<bool> {
        if self.term.is_none() {
            let begins =
                |last: &Last| (last.token < fence.token.into()).then_some(("begins", last.steps));
            if !self.add(fence, begins)? {
                return Ok(false);
            }
            self.term = Some(fence);
        }
        let steps = self.read()? + 1;
        self.add(fence, |last| last.is_of(fence).then_some(("step", steps)))
    }

    fn read(&self) -> io::Result<u64> {
        let mut file = File::open(self.path)?;
        file.lock_shared()?;
        Ok(Last::of(&mut file)?.steps)
    }

    /// Adds the line that `next` returns, if any: a word, and the number of steps. Returns whether it did. Meanwhile, other
    /// processes wait for the file.
    ///
    /// This blocks the thread, but the lease is still renewed, by the manager's own thread.
    fn add(
        &self,
        fence: Fence,
        next: impl FnOnce(&Last) -> Option<(&'static str, u64)>,
    ) -> io::Result<bool> {
        let mut file = File::options()
            .read(true)
            .append(true)
            .create(true)
            .open(self.path)?;
        // Locked until the file is closed.
        file.lock()?;
        let last = Last::of(&mut file)?;
        let Some((word, steps)) = next(&last) else {
            return Ok(false);
        };
        let (token, holder, label) = (fence.token, fence.holder, self.label);
        let line = format!("{token} {holder} {label} {word} {steps}\n");
        // One write, so that a process that is killed leaves a whole line or none.
        file.write_all(line.as_bytes())?;
        Ok(true)
    }
}

impl Last {
    fn of(file: &mut File) -> io::Result<Self> {
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let Some(line) = text.lines().last() else {
            return Ok(Self::default());
        };
        let mut words = line.split(' ');
        let mut number = |skipped| {
            let number = words.nth(skipped).and_then(|word| word.parse().ok());
            number.ok_or_else(|| io::Error::other(format!("not a line of a journal: {line}")))
        };
        Ok(Self {
            token: number(0)?,
            holder: number(0)?,
            steps: number(2)?,
        })
    }

    fn is_of(&self, fence: Fence) -> bool {
        (self.token, self.holder) == (fence.token.into(), fence.holder)
    }
}

/// Records the end of the term: the body has returned, or was dropped.
impl Drop for Journal<'_> {
    fn drop(&mut self) {
        let Some(fence) = self.term else { return };
        let end = self.add(fence, |last| {
            last.is_of(fence).then_some(("ends", last.steps))
        });
        if let Err(error) = end {
            println!("{}: cannot write to the journal: {error}", self.label);
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let millis = |name, unset| env::var(name).map_or(Ok(unset), |text| text.parse());
    let lock_url = env::var("LOCK_URL").unwrap_or_else(|_| "memory://".to_owned());
    let journal = env::var_os("JOURNAL").map(PathBuf::from);
    let label = env::args()
        .nth(1)
        .unwrap_or_else(|| format!("process-{}", process::id()));
    let me = Candidate {
        locks: LockManager::builder()
            .label(&label)
            .connect(&lock_url)
            .await?,
        label,
        ttl: Duration::from_millis(millis("TTL_MS", 10_000)?),
        step: Duration::from_millis(millis("STEP_MS", 1_000)?),
        journal: journal.unwrap_or_else(|| env::temp_dir().join("leader.journal")),
    };
    let signal = shutdown_signal();
    println!("{}: is the process {}", me.label, process::id());
    tokio::select! {
        failed = run_for_leader(&me) => failed?,
        () = follow(&me) => {}
        () = signal => {}
    }
    // The body of a term has been dropped, and so has its place in the queue. This waits until the server knows.
    me.locks.shutdown(GRACE).await;
    println!("{}: has ended", me.label);
    Ok(())
}
