//! Child processes that end with the test, however it ends, and the programs that they run.

use std::{
    env,
    ffi::OsStr,
    io,
    path::Path,
    process::{Child, Command, ExitStatus},
    sync::{OnceLock, mpsc},
    thread,
};

use rustix::process::{Pid, Signal, kill_process};

/// A child process, killed when this is dropped, and by the kernel when the test process dies.
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
        // No test signals a child that it has seen end: after that wait, the kernel may give the id to another process.
        kill_process(pid, signal).expect("the id is ours until the child is waited for");
    }

    /// Returns the exit status, if it has ended.
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

/// Returns a command for `program`, which must be installed, by this package if it is not ours. The process that it starts dies
/// with this one.
///
/// `setpriv` sets the death signal. `env` lets ctrl-c end the program even if this process was started
/// with ctrl-c ignored (in a shell's background). Each is replaced by the next program (`exec`), so the
/// process id stays the same, and no unsafe code is needed here.
pub(crate) fn command(program: &str, package: Option<&str>) -> Command {
    require(program, package);
    command_with(&[], program)
}

/// Returns a [`command`] with further options of `setpriv`, for example for the user that runs the program.
pub(crate) fn command_with(options: &[&str], program: impl AsRef<OsStr>) -> Command {
    require("setpriv", Some("util-linux"));
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL"])
        .args(options)
        .args(["--", "env", "--default-signal=INT"])
        .arg(program);
    command
}

fn require(program: &str, package: Option<&str>) {
    let search = env::var_os("PATH").unwrap_or_default();
    let is_installed = env::split_paths(&search).any(|folder| folder.join(program).is_file());
    let or = package.map_or(String::new(), |package| {
        format!(", or install the package {package}")
    });
    assert!(
        is_installed,
        "`{program}` is not installed: run tests/run{or}"
    );
}

/// Returns the path of a program or a library that `tests/run --all` fetches, below `.tools`. `what` is its name for people.
#[track_caller]
pub fn fetched(path: &str, what: &str) -> String {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools");
    let path = tools.join(path);
    assert!(
        path.exists(),
        "{what} is missing: run `tests/run --all`, which fetches it"
    );
    path.to_str().expect("a path that is text").to_owned()
}

struct Order {
    command: Command,
    reply: mpsc::SyncSender<io::Result<Child>>,
}

/// Returns the queue of the one thread that starts all children. It never ends, because the kernel's death signal follows the
/// *thread* that started a child, and the test runner ends a thread with each test.
fn spawner() -> &'static mpsc::Sender<Order> {
    static SPAWNER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    SPAWNER.get_or_init(|| {
        let (orders, queue) = mpsc::channel::<Order>();
        thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || {
                for mut order in queue {
                    // If the test was torn down meanwhile, the reply has no receiver.
                    order.reply.send(order.command.spawn()).ok();
                }
            })
            .expect("one more thread");
        orders
    })
}
