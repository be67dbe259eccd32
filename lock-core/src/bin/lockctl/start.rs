//! Starting the command of `run`. On Linux, it is started in such a way that the kernel kills it when `run` ends.
//!
//! Only the process itself can request that from the kernel, after its start and before it becomes the command. So `run` starts
//! this program once more, which makes the request and then becomes the command.
//!
//! The kernel forgets the request if the command runs with the rights of another user, as with `sudo`. Such a command is left
//! to the keeper.

use std::{
    ffi::{OsStr, OsString},
    io,
    process::Command,
};
#[cfg(target_os = "linux")]
use std::{os::unix::process::CommandExt, process};

#[cfg(target_os = "linux")]
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::Failed;
#[cfg(target_os = "linux")]
use crate::SOFTWARE;

/// The hidden subcommand that becomes the command of `run`.
#[cfg(target_os = "linux")]
pub(crate) const COMMAND: &str = "__exec";

/// The path of this program, which works even if its file was replaced in the meantime.
#[cfg(target_os = "linux")]
const THIS_PROGRAM: &str = "/proc/self/exe";

/// The exit codes of a shell.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

#[cfg(target_os = "linux")]
#[derive(clap::Args)]
pub(crate) struct Exec {
    /// The process id of `run`
    run: i32,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Returns the command for `run`, which is this process, to spawn.
///
/// The kernel kills the command when the thread that spawned it ends, so that must be the main thread.
#[cfg(target_os = "linux")]
pub(crate) fn starter(command: &[OsString]) -> Command {
    let mut starter = Command::new(THIS_PROGRAM);
    starter
        .arg0("lockctl")
        .args([COMMAND, &process::id().to_string(), "--"])
        .args(command);
    starter
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn starter(command: &[OsString]) -> Command {
    plain(command)
}

/// Becomes the command of `run`. Returns only on failure, with the reason.
#[cfg(target_os = "linux")]
pub(crate) fn become_command(order: &Exec) -> Failed {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return Failed {
            code: SOFTWARE,
            reason: format!("cannot make the command end with this program: {error}"),
        };
    }
    // The kernel does nothing if `run` ended before the request. In that case `run` was killed, so there is nobody to report
    // to.
    if getppid() != Pid::from_raw(order.run) {
        return Failed {
            code: SOFTWARE,
            reason: String::new(),
        };
    }
    let error = plain(&order.command).exec();
    cannot_run(&order.command, &error)
}

fn plain(command: &[OsString]) -> Command {
    let mut words = command.iter();
    // The parser of the arguments refuses an empty command.
    let mut plain = Command::new(words.next().map_or(OsStr::new(""), OsString::as_os_str));
    plain.args(words);
    plain
}

pub(crate) fn cannot_run(command: &[OsString], error: &io::Error) -> Failed {
    let program = command.first().map_or(OsStr::new(""), OsString::as_os_str);
    Failed {
        code: match error.kind() {
            io::ErrorKind::NotFound => NOT_FOUND,
            _ => NOT_EXECUTABLE,
        },
        reason: format!("cannot run {}: {error}", program.display()),
    }
}
