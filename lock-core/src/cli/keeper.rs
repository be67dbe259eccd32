//! A second process, which ends the command of `run` if `run` itself is gone.
//!
//! A process that is killed cannot end its children. It holds one end of a pipe, and this one reads the other: when the pipe is closed,
//! and the command was not said to have ended, `run` is gone.
//!
//! The keeper is there before the command, and leads the group that the command joins as it starts. So there is no moment at which `run`
//! can be killed and the command goes on. At a terminal the command stays in the group of `run`, and the keeper is told its id.

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

/// By which this program knows that it is to be the keeper.
pub(crate) const COMMAND: &str = "__keep";

/// What is ended: a process, or a group.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    Process(Pid),
    Group(Pid),
}

impl Target {
    pub(crate) fn send(self, signal: Signal) {
        // The error says that it has ended.
        match self {
            Self::Process(pid) => kill_process(pid, signal).ok(),
            Self::Group(pid) => kill_process_group(pid, signal).ok(),
        };
    }
}

pub(crate) struct Keeper {
    process: Child,
    /// The group that it leads.
    pub(crate) group: Pid,
}

impl Keeper {
    /// `patience`: the time between SIGTERM and SIGKILL. Returns once it has its signal handlers: a signal for its group that came
    /// before would end it, and the command, which may ignore that signal, would have no keeper.
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

    /// The command is not in its group.
    pub(crate) fn watch(&mut self, pid: Pid) -> io::Result<()> {
        self.tell(&format!("{}\n", pid.as_raw_nonzero()))
    }

    /// The command has ended, or was not started.
    pub(crate) fn dismiss(mut self) {
        // It may have been killed with its group.
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

/// What the keeper does. It ends with what `run` says, or when `run` is gone. Blocks the runtime that it is called in, which has nothing
/// else to do.
pub(crate) fn keep(patience: Duration) {
    // Its group gets signals that are not meant for it.
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
