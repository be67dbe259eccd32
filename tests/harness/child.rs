//! Child processes that never outlive the test, however it ends.

use std::{
    env,
    ffi::OsStr,
    io,
    process::{Child, Command, ExitStatus},
    sync::{OnceLock, mpsc},
    thread,
};

use rustix::process::{Pid, Signal, kill_process};

/// A child process, killed by its own id when this is dropped, and by the kernel when the test
/// process dies.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    child: Child,
}

impl ChildProcess {
    /// Starts a command that [`command`] made.
    pub(crate) fn spawn(command: Command) -> Self {
        let (reply, receiver) = mpsc::sync_channel(1);
        spawner()
            .send(Order { command, reply })
            .expect("the spawning thread lives as long as the process");
        let child = receiver
            .recv()
            .expect("the spawning thread answers every order");
        let child = child.unwrap_or_else(|error| panic!("setpriv did not start: {error}"));
        Self { child }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("a process id fits");
        let pid = Pid::from_raw(id).expect("a process id is not zero");
        // The kernel keeps the id for the child until a wait collects it, and only `ended` and `kill` wait.
        kill_process(pid, signal).expect("a signal to a child that ended already");
    }

    /// The exit status, if it ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the child is ours")
    }

    /// Kills it as by `kill -9` and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        // An error means that it ended by itself.
        self.child.kill().ok();
        self.child.wait().expect("the child is ours");
    }

    pub(crate) fn get_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A command for `program`; the process that it starts dies with this one.
///
/// `setpriv` sets the death signal. `env` lets ctrl-c end the program even if this process was started
/// with ctrl-c ignored (in a shell's background). Each becomes the next program by `exec`, so the
/// process id stays the same, and no unsafe code is needed here.
pub(crate) fn command(program: &str, package: &str) -> Command {
    require(program, package);
    command_with(&[], program)
}

/// A [`command`] with further options of `setpriv`, as for the user that runs the program.
pub(crate) fn command_with(options: &[&str], program: impl AsRef<OsStr>) -> Command {
    require("setpriv", "util-linux");
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL"])
        .args(options)
        .args(["--", "env", "--default-signal=INT"])
        .arg(program);
    command
}

fn require(program: &str, package: &str) {
    let search = env::var_os("PATH").unwrap_or_default();
    assert!(
        is_installed(program, &search),
        "`{program}` is not installed: run tests/run, or install the package {package}"
    );
}

fn is_installed(program: &str, search: &OsStr) -> bool {
    env::split_paths(search).any(|folder| folder.join(program).is_file())
}

struct Order {
    command: Command,
    reply: mpsc::SyncSender<io::Result<Child>>,
}

/// Starts all children from one thread that never ends. The kernel ties a child to the *thread* that
/// started it, and the test runner ends a thread with each test.
fn spawner() -> &'static mpsc::Sender<Order> {
    static SPAWNER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    SPAWNER.get_or_init(|| {
        let (orders, queue) = mpsc::channel::<Order>();
        thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || {
                for mut order in queue {
                    // No receiver is left for the reply if the test was torn down meanwhile.
                    order.reply.send(order.command.spawn()).ok();
                }
            })
            .expect("one more thread");
        orders
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_up_in_the_folders_of_the_path_alone() {
        assert!(is_installed("sh", OsStr::new("/nowhere:/bin")));
        assert!(!is_installed("sh", OsStr::new("/nowhere")));
        assert!(!is_installed("sh", OsStr::new("")));
    }

    #[test]
    #[should_panic(expected = "`no-such-server` is not installed: run tests/run")]
    fn a_missing_program_is_one_line_that_says_what_to_do() {
        command("no-such-server", "no-such-package");
    }
}
