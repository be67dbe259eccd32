//! Tasks that take a lock and release it, again and again, for a while.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{runtime::Runtime, task::JoinSet};

use crate::{
    lockers::Locker,
    sample::{Sample, Work},
    usage::{Cpu, Watch},
};

/// The keys that the tasks take, and the time that is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keys {
    /// Each task its own key. The measured time is that of acquire and release together.
    Own,
    /// All tasks the same key, which the holder keeps for one turn of the scheduler. The measured time is the wait.
    Same,
    /// All tasks the same key, which several hold at a time. The measured time is that of acquire and release together.
    Together,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) tasks: usize,
    pub(crate) keys: Keys,
    pub(crate) window: Duration,
}

type Run = dyn Fn(Load, &mut Watch) -> Sample;

/// A contender with its name, ready for rounds.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    run: Box<Run>,
}

impl Contender {
    pub(crate) fn new(name: &'static str, runtime: &Arc<Runtime>, locker: impl Locker) -> Self {
        let runtime = runtime.clone();
        let run = move |load: Load, watch: &mut Watch| {
            let cpu = Cpu::start();
            let (workers, server) = watch.during(|| runtime.block_on(all(&locker, load)));
            Sample {
                elapsed: load.window,
                workers,
                server,
                clients: cpu.spent(),
            }
        };
        Self {
            name,
            run: Box::new(run),
        }
    }

    pub(crate) fn run(&self, load: Load, watch: &mut Watch) -> Sample {
        (self.run)(load, watch)
    }
}

async fn all(locker: &impl Locker, load: Load) -> Vec<Work> {
    let window = Window::starting_now(load.window);
    let last = Arc::new(AtomicUsize::new(load.tasks));
    let mut running = JoinSet::new();
    for number in 0..load.tasks {
        let (locker, last) = (locker.clone(), last.clone());
        running.spawn(async move {
            match load.keys {
                Keys::Own => alone(&locker, &format!("own:{number}"), window).await,
                Keys::Together => alone(&locker, "hot", window).await,
                Keys::Same => {
                    let while_held = || async {
                        tokio::task::yield_now().await;
                        last.swap(number, Ordering::Relaxed) != number
                    };
                    together(&locker, window, while_held).await
                }
            }
        });
    }
    running.join_all().await
}

/// The time in which operations count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

impl Window {
    pub(crate) fn starting_now(length: Duration) -> Self {
        let start = Instant::now();
        Self {
            start,
            end: start + length,
        }
    }
}

/// Takes and releases until the end of the window, and counts from its start.
pub(crate) async fn alone(locker: &impl Locker, key: &str, window: Window) -> Work {
    let mut work = Work::default();
    let mut asked = Instant::now();
    while asked < window.end {
        let held = locker.acquire(key).await;
        locker.release(key, held).await;
        let done = Instant::now();
        if asked >= window.start {
            work.times.record(done - asked);
            work.taken += 1;
            work.count += 1;
        }
        asked = done;
    }
    work
}

/// Contends for one key until the end of the window, and counts from its start.
///
/// `while_held` is the holder's work; it returns whether another holder had the lock before.
pub(crate) async fn together<F>(
    locker: &impl Locker,
    window: Window,
    while_held: impl Fn() -> F + Send + Sync,
) -> Work
where
    F: Future<Output = bool> + Send,
{
    let mut work = Work::default();
    loop {
        let asked = Instant::now();
        if asked >= window.end {
            return work;
        }
        let held = locker.acquire("hot").await;
        let got = Instant::now();
        let from_another = while_held().await;
        locker.release("hot", held).await;
        if got < window.start {
            continue;
        }
        // A task that gets the lock after the end has waited as well.
        work.times.record(got - asked);
        if got < window.end {
            work.taken += 1;
            work.count += u64::from(from_another);
        }
    }
}
