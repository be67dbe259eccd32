//! Tasks that repeatedly acquire and release a lock, for a while.

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
    sample::{Sample, Samples, Work},
    usage::{Cpu, Watch},
};

/// The keys that the tasks lock, and the time that is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keys {
    /// Each task has its own key. The measured time is that of acquire and release together.
    Own,
    /// All tasks contend for one key, and the holder yields to the scheduler once. The measured time is the wait.
    Same,
    /// All tasks lock one key, which several may hold at a time. The measured time is that of acquire and release together.
    Together,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) tasks: usize,
    pub(crate) keys: Keys,
    pub(crate) window: Duration,
}

type Run = dyn Fn(Load, &mut Watch) -> Sample;

/// A named contender, ready to run.
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

/// Lets the contenders take turns for some rounds.
pub(crate) fn take_turns<const COUNT: usize>(
    contenders: &[Contender; COUNT],
    load: Load,
    rounds: usize,
    watch: &mut Watch,
) -> [Samples; COUNT] {
    let mut all = [(); COUNT].map(|()| Samples::default());
    for _ in 0..rounds {
        for (contender, samples) in contenders.iter().zip(&mut all) {
            samples.push(contender.run(load, watch));
        }
    }
    all
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

/// The time in which operations are counted.
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

/// Acquires and releases until the end of the window, and counts the pairs that lie within it.
pub(crate) async fn alone(locker: &impl Locker, key: &str, window: Window) -> Work {
    let mut work = Work::default();
    let mut asked = Instant::now();
    while asked < window.end {
        let held = locker.acquire(key).await;
        locker.release(key, held).await;
        let done = Instant::now();
        if asked >= window.start && done < window.end {
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
/// `while_held` is the work of the holder, and returns whether the previous holder was another one.
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
        // The wait of a task that gets the lock after the end of the window is recorded, too.
        work.times.record(got - asked);
        if got < window.end {
            work.taken += 1;
            work.count += u64::from(from_another);
        }
    }
}
