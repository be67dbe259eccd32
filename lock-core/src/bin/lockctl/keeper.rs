//! A second process, which ends the command of `run` if `run` itself was killed.
//!
//! A process that is killed cannot end its children. So `run` holds one end of a pipe, and the keeper reads the other. The pipe
//! is closed when `run` ends. Unless `run` has already reported that the command ended, the keeper kills the command.
//!
//! The keeper is a shell, because a second process of this program would have the same name, and `killall` would kill both.
//!
//! The keeper is started before the command, and leads the process group that the command joins as it starts. So `run` can be
//! killed at any moment, and the command ends with its children. At a terminal, the command stays in the group of `run`, and
//! `run` sends its process id to the keeper. A `run` that is killed before that leaves the command running, except on Linux: see
//! `start.rs`.
//!
//! Rejected: sending the process id to the keeper in every case, because the command continued if `run` was killed before that,
//! as a test showed at once; and sending SIGTERM first, because the kernel sends only one signal, and a command may ignore
//! SIGTERM.

use std::{
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

const SHELL: &str = "/bin/sh";

/// The keeper's script. Signals for the group are meant for the command, which may ignore them. So the keeper ignores them, and
/// reports when it does. All commands in the script are built into the shell, so that it starts no process.
const SCRIPT: &str = "trap '' HUP INT TERM
echo ready
target=-$$
while read -r line; do
    case $line in
        ended) exit ;;
        *) target=$line ;;
    esac
done
kill -s KILL -- \"$target\"";

/// The name under which `ps` shows the keeper.
const NAME: &str = "lock-keeper";

/// The process or the process group to end.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    Process(Pid),
    Group(Pid),
}

impl Target {
    pub(crate) fn send(self, signal: Signal) {
        // An error means that it has already ended.
        match self {
            Self::Process(pid) => kill_process(pid, signal).ok(),
            Self::Group(pid) => kill_process_group(pid, signal).ok(),
        };
    }
}

pub(crate) struct Keeper {
    process: Child,
    /// The process group that the keeper leads.
    pub(crate) group: Pid,
}

impl Keeper {
    /// Starts the keeper. Returns once the keeper ignores signals: otherwise, a signal for the group that the command ignores
    /// would end the keeper.
    ///
    /// Returns `None` on a Linux without a shell, as in a container with this program alone. There the kernel ends the command.
    pub(crate) fn start() -> io::Result<Option<Self>> {
        let mut command = Command::new(SHELL);
        command
            .args(["-c", SCRIPT, NAME])
            // A shell may take functions from its environment, even in place of its own commands.
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let mut process = match command.spawn() {
            Ok(process) => process,
            Err(error) if cfg!(target_os = "linux") && error.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let mut ready = [0; 1];
        let mut stdout = process.stdout.take().ok_or(io::ErrorKind::InvalidData)?;
        stdout.read_exact(&mut ready)?;
        let group = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
        let group = group.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Some(Self { process, group }))
    }

    /// Makes the keeper end this process, which is not in its group.
    pub(crate) fn watch(&mut self, pid: Pid) -> io::Result<()> {
        self.write_line(&format!("{}\n", pid.as_raw_nonzero()))
    }

    /// Ends the keeper after the command has ended, or if it was not started.
    pub(crate) fn dismiss(mut self) {
        // The keeper may have been killed with its group, in which case both fail.
        self.write_line("ended\n").ok();
        self.process.wait().ok();
    }

    fn write_line(&mut self, line: &str) -> io::Result<()> {
        let pipe = self.process.stdin.as_mut();
        let pipe = pipe.ok_or(io::ErrorKind::BrokenPipe)?;
        pipe.write_all(line.as_bytes())?;
        pipe.flush()
    }
}
