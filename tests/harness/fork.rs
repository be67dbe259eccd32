//! Processes that fork; no safe function of Rust forks.

use rustix::process::{Pid, WaitOptions, waitpid};

use crate::{preload::Preload, process::Process};

/// Makes [`fork`] work in the programs that this starts.
#[derive(Debug)]
pub struct Forks {
    preload: Preload,
}

impl Forks {
    /// Compiles the library that the programs preload.
    #[expect(clippy::new_without_default, reason = "it compiles a library")]
    pub fn new() -> Self {
        Self {
            preload: Preload::compile("fork.c"),
        }
    }

    /// Starts a program with these arguments, as [`Process::spawn`] does.
    pub fn spawn(&self, program: &str, arguments: &[&str]) -> Process {
        let library = self.preload.library();
        let library = library.to_str().expect("a path in UTF-8");
        Process::spawn(program, arguments, &[("LD_PRELOAD", library)])
    }
}

/// A child of the process that called [`fork`].
#[derive(Debug)]
#[must_use = "if nothing waits for the child, its exit status is lost"]
pub struct Child(Pid);

/// Forks the process, which [`Forks::spawn`] must have started. Returns in both processes, with `None` in the child.
///
/// The child has only the thread that called this.
pub fn fork() -> Option<Child> {
    let reply = std::os::unix::fs::chroot("the preloaded library forks");
    let number = reply.err()?.raw_os_error().expect("an error of the system");
    Some(Child(Pid::from_raw(number).expect("the id of a process")))
}

impl Child {
    /// Waits until it ends, and returns its exit status; `None` if a signal ended it.
    pub fn wait(self) -> Option<i32> {
        let ended = waitpid(Some(self.0), WaitOptions::empty());
        let (_, status) = ended.expect("a child, and the library").expect("it ended");
        status.exit_status()
    }
}
