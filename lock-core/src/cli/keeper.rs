//! A second process, which ends the command of `run` if `run` itself was killed.
//!
//! A process that is killed cannot end its children. So `run` has one end of a pipe, and the keeper reads the other. The pipe is closed
//! when `run` ends. If `run` has not said before that the command ended, the keeper ends the command.
//!
//! The keeper is started before the command, and leads the process group that the command joins as it starts. So `run` can be killed at
//! any moment, and the command ends. At a terminal the command stays in the group of `run`, and the keeper is told its process id. A
//! `run` that is killed between these two steps leaves the command running.

use std::{
    env,
    io::{self, BufRead, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};
use tokio::signal::unix::{SignalKind, signal};

/// The hidden subcommand that starts the keeper.
pub(crate) const COMMAND: &str = "__keep";

/// The process or the process group to end.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    Process(Pid),
    Group(Pid),
}

impl Target {
    pub(crate) fn send(self, signal: Signal) {
        // An error means that it has ended already.
        match self {
            Self::Process(pid) => kill_process(pid, signal).ok(),
            Self::Group(pid) => kill_process_group(pid, signal).ok(),
        };
    }
}

pub(crate) struct Keeper {
    process: Child,
    /// The process group that it leads.
    pub(crate) group: Pid,
}

impl Keeper {
    /// Starts the keeper, with the time between SIGTERM and SIGKILL. Returns when the keeper has its signal handlers. Without them, a
    /// signal for the group would end the keeper, while the command may ignore that signal.
    pub(crate) fn start(patience: Duration) -> io::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command
            .arg(COMMAND)
            .arg(patience.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let mut process = command.spawn()?;
        let mut ready = [0; 1];
        let mut stdout = process.stdout.take().ok_or(io::ErrorKind::InvalidData)?;
        stdout.read_exact(&mut ready)?;
        let group = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
        let group = group.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { process, group })
    }

    /// Makes the keeper end this process, which is not in its group.
    pub(crate) fn watch(&mut self, pid: Pid) -> io::Result<()> {
        self.tell(&format!("{}\n", pid.as_raw_nonzero()))
    }

    /// Ends the keeper: the command has ended, or was not started.
    pub(crate) fn dismiss(mut self) {
        // The keeper may have been killed with its group: both fail then.
        self.tell("ended\n").ok();
        self.process.wait().ok();
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        let pipe = self.process.stdin.as_mut();
        let pipe = pipe.ok_or(io::ErrorKind::BrokenPipe)?;
        pipe.write_all(line.as_bytes())?;
        pipe.flush()
    }
}

/// Runs the keeper until `run` dismisses it, or until it has ended the command. Blocks its runtime, which has nothing else to do.
pub(crate) fn keep(patience: Duration) {
    // Signals to the group are for the command. With a handler, the keeper survives them.
    let passed_on = [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
    ];
    let handled = passed_on.map(signal);
    if handled.iter().any(Result::is_err) || io::stdout().write_all(b"\n").is_err() {
        return;
    }
    let mut target = Target::Group(getpid());
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        match line.parse().ok().and_then(Pid::from_raw) {
            Some(pid) => target = Target::Process(pid),
            None => return,
        }
    }
    target.send(Signal::TERM);
    thread::sleep(patience);
    target.send(Signal::KILL);
}
