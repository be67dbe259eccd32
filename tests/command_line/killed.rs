//! A `lockctl run` that is killed must end its command, which must not overlap with the next holder.

use std::fs;

use lock_tests::{HANG, Process, RedisServer, eventually, eventually_blocking};
use rustix::process::{Pid, Signal, kill_process};

use super::LOCKCTL;

/// The environment variable that marks a test's `lockctl`, its command, and all that the command starts.
const MARK: &str = "KILLED_TEST";

struct Running {
    id: i32,
    parent: i32,
    name: String,
}

/// Returns all running processes, except zombies.
fn processes() -> Vec<Running> {
    let entries = fs::read_dir("/proc").expect("a process file system");
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter_map(|id: i32| {
        // The process may have ended in the meantime.
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let (front, back) = stat.rsplit_once(") ")?;
        let (_, name) = front.split_once('(')?;
        let mut fields = back.split(' ');
        let is_zombie = fields.next()? == "Z";
        let parent = fields.next()?.parse().ok()?;
        let name = name.to_owned();
        (!is_zombie).then_some(Running { id, parent, name })
    })
    .collect()
}

fn kill(id: i32) {
    let pid = Pid::from_raw(id).expect("a process");
    // An error means that it has already ended.
    kill_process(pid, Signal::KILL).ok();
}

/// Kills as `killall -9 lockctl` does, but only this one and its children. The children end first, so that none notices its end.
fn kill_by_name(lockctl: &mut Process) {
    let root = i32::try_from(lockctl.id()).expect("a process id");
    let name = LOCKCTL.rsplit('/').next().expect("a name");
    for process in processes() {
        if process.name == name && process.parent == root {
            kill(process.id);
        }
    }
    lockctl.kill9();
}

/// The processes with a mark. The end of the test kills those that are left.
struct Marked(String);

impl Marked {
    fn all(&self) -> Vec<i32> {
        let wanted = format!("{MARK}={}", self.0);
        let has_mark = |id: &i32| {
            let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|variable| variable == wanted.as_bytes())
        };
        let ids = processes().into_iter().map(|process| process.id);
        ids.filter(has_mark).collect()
    }

    /// Runs a command that ignores signals, like its child.
    fn start(&self, server: &RedisServer) -> Process {
        let stays =
            "trap '' HUP INT TERM; sh -c 'while :; do sleep 0.1; done' & echo started; wait";
        let url = server.url();
        let words = ["--url", &url, "run", "k", "--", "sh", "-c", stays];
        Process::spawn(LOCKCTL, &words, &[(MARK, &self.0)])
    }

    async fn none_is_left(&self) {
        eventually!(HANG, "the command has ended with its child" => self.all().is_empty());
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        self.all().into_iter().for_each(kill);
    }
}

#[tokio::test]
async fn a_command_and_its_children_end_with_all_processes_named_lockctl() {
    let server = RedisServer::start();
    let marked = Marked("running".to_owned());
    let mut process = marked.start(&server);
    assert_eq!(process.line(), "started");
    assert!(marked.all().len() >= 3);
    kill_by_name(&mut process);
    marked.none_is_left().await;
}

/// The lock is held, but its command may not have started yet.
#[tokio::test]
async fn a_command_ends_with_all_processes_named_lockctl_right_after_the_start() {
    let server = RedisServer::start();
    for round in 0..30 {
        let marked = Marked(format!("start-{round}"));
        let mut process = marked.start(&server);
        eventually_blocking(HANG, "the lock is held", || server.get("lock:k").is_some());
        // Each round kills it a little later.
        for _ in 0..round {
            processes();
        }
        kill_by_name(&mut process);
        marked.none_is_left().await;
        server.cli(&["DEL", "lock:k"]);
    }
}

/// The kernel ends the command if no process is left to do so.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_command_ends_if_everything_else_is_killed() {
    let server = RedisServer::start();
    let marked = Marked("alone".to_owned());
    let url = server.url();
    let words = [
        "--url",
        &url,
        "run",
        "k",
        "--",
        "sh",
        "-c",
        "echo $$; exec sleep 1000",
    ];
    let mut process = Process::spawn(LOCKCTL, &words, &[(MARK, "alone")]);
    let command: i32 = process.line().parse().expect("a process id");
    let root = i32::try_from(process.id()).expect("a process id");
    for other in processes() {
        if other.parent == root && other.id != command {
            kill(other.id);
        }
    }
    process.kill9();
    marked.none_is_left().await;
}

/// There, the command is in the process group of `lockctl`, which owns the terminal.
#[tokio::test]
async fn a_command_at_a_terminal_ends_with_lockctl() {
    let server = RedisServer::start();
    let marked = Marked("terminal".to_owned());
    let stays = "trap \"\" HUP INT TERM; echo started; while :; do sleep 0.1; done";
    let shell = format!("exec \"$LOCKCTL\" run k -- sh -c '{stays}'");
    let url = server.url();
    let variables = [(MARK, "terminal"), ("LOCKCTL", LOCKCTL), ("LOCK_URL", &url)];
    let mut terminal = Process::spawn("script", &["-q", "-c", &shell, "/dev/null"], &variables);
    assert_eq!(terminal.line(), "started");
    let script = i32::try_from(terminal.id()).expect("a process id");
    let all = processes();
    let lockctl = all.iter().find(|process| process.parent == script);
    kill(lockctl.expect("a child").id);
    marked.none_is_left().await;
}
