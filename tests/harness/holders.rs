//! Processes whose tasks take locks again and again, and the history that they write.

use std::time::Duration;

use tempfile::TempDir;

use crate::{
    history::{Follower, History, Moment},
    process::Process,
    wait::eventually,
};

/// The arguments of the program `holder`, which describes them.
#[derive(Debug, Clone)]
pub struct Load {
    /// The keys that are locked, in turn.
    pub keys: Vec<String>,
    /// The number of processes.
    pub processes: u32,
    /// The number of tasks in each process.
    pub tasks: u32,
    /// The ttl of each lease.
    pub ttl: Duration,
    /// The time for which each lock is held.
    pub hold: Duration,
}

/// Running holders, killed when this is dropped.
#[derive(Debug)]
pub struct Holders {
    processes: Vec<Process>,
    follower: Follower,
    // Contains the history, and is removed with it.
    _folder: TempDir,
}

impl Holders {
    /// Starts the processes, which lock on the servers behind `url`. The path of the program is `env!("CARGO_BIN_EXE_holder")`.
    pub fn start(program: &str, url: &str, load: &Load) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("history");
        let follower = Follower::open(&path).expect("a new file");
        let path = path.to_str().expect("a path that is text");
        let (keys, tasks) = (load.keys.join(","), load.tasks.to_string());
        let (ttl, hold) = (
            load.ttl.as_millis().to_string(),
            load.hold.as_millis().to_string(),
        );
        let spawn = |process: u32| {
            let process = process.to_string();
            let arguments = [url, path, &process, &keys, &tasks, &ttl, &hold];
            Process::spawn(program, &arguments, &[])
        };
        let mut processes: Vec<Process> = (0..load.processes).map(spawn).collect();
        // All processes are connected before the first begins, so that they really compete.
        for process in &mut processes {
            assert_eq!(process.line(), "ready");
        }
        for process in &mut processes {
            process.say("go");
        }
        Self {
            processes,
            follower,
            _folder: folder,
        }
    }

    /// Waits until each process has got some lock this many times since a point in time.
    #[track_caller]
    pub fn all_get_it(
        &mut self,
        times: usize,
        after: Moment,
        within: Duration,
    ) -> impl Future<Output = ()> {
        let numbers = 0..u32::try_from(self.processes.len()).expect("a few");
        let what = "each process gets enough locks";
        eventually(within, what, async move || {
            let history = self.follower.history();
            numbers
                .clone()
                .all(|process| history.grants(process, after) >= times)
        })
    }

    /// Returns the history so far.
    pub fn history(&mut self) -> &History {
        self.follower.history()
    }

    /// Returns the processes, for a test to stop and kill.
    pub fn processes(&mut self) -> &mut [Process] {
        &mut self.processes
    }

    /// Lets each task release the lock that it holds, and returns the whole history.
    pub fn stop(mut self) -> History {
        for process in &mut self.processes {
            process.say("stop");
        }
        for process in self.processes {
            process.join();
        }
        self.follower.finish()
    }
}
