//! Starts other programs of the workspace as separate processes, as the replicas of a service are.

use std::{
    convert::Infallible,
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    process::{ChildStdout, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::child::{self, ChildProcess};

/// The longest time that a test waits for a process before it kills the process. No soak and no bench needs so long.
const MOST: Duration = Duration::from_secs(600);

/// A running program, killed when this is dropped or the test process dies.
///
/// Its standard output is read here. Its standard error goes where the test's own standard error goes.
#[derive(Debug)]
pub struct Process {
    child: ChildProcess,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a program with these arguments, and these variables in addition to those of the test.
    ///
    /// The path of a program is `env!("CARGO_BIN_EXE_name")`, which cargo sets for the integration
    /// tests of its package.
    pub fn spawn(program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::spawn_to(program, arguments, variables, Stdio::inherit())
    }

    /// Like [`spawn`](Self::spawn), with the standard error of the program appended to this file.
    pub fn spawn_with_log(program: &str, arguments: &[&str], log: File) -> Self {
        Self::spawn_to(program, arguments, &[], log.into())
    }

    fn spawn_to(
        program: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
        stderr: Stdio,
    ) -> Self {
        let mut command = child::command(program, None);
        command
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr);
        let mut child = ChildProcess::spawn(command);
        let stdout = child.get_mut().stdout.take().expect("piped");
        Self {
            child,
            stdout: BufReader::new(stdout),
        }
    }

    /// Waits for the next line that it prints, and returns it without its end.
    pub fn line(&mut self) -> String {
        let _watchdog = self.watchdog();
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a pipe");
        assert!(!line.is_empty(), "the process ended without another line");
        line.truncate(line.trim_end_matches(['\r', '\n']).len());
        line
    }

    /// Sends it a line.
    pub fn say(&mut self, line: &str) {
        let stdin = self.child.get_mut().stdin.as_mut().expect("piped");
        writeln!(stdin, "{line}").expect("a process that reads");
    }

    /// Returns its id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns how it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.ended()
    }

    /// Stops it (`SIGSTOP`).
    pub fn stop(&self) {
        self.child.signal(Signal::STOP);
    }

    /// Resumes it after a stop (`SIGCONT`).
    pub fn cont(&self) {
        self.child.signal(Signal::CONT);
    }

    /// Asks it to end, as ctrl-c does (`SIGINT`).
    pub fn interrupt(&self) {
        self.child.signal(Signal::INT);
    }

    /// Asks it to end, as an orchestrator does (`SIGTERM`).
    pub fn terminate(&self) {
        self.child.signal(Signal::TERM);
    }

    /// Kills it as by `kill -9`.
    pub fn kill9(&mut self) {
        self.child.kill();
    }

    /// Waits until it ends by itself, with success. Returns the output after the lines that were read.
    pub fn join(mut self) -> String {
        let _watchdog = self.watchdog();
        let mut output = String::new();
        self.stdout.read_to_string(&mut output).expect("text");
        let status = self.child.get_mut().wait().expect("the child is ours");
        assert!(status.success(), "the process failed: {status}\n{output}");
        output
    }

    /// Kills the process after [`MOST`], unless the returned value is dropped first.
    fn watchdog(&self) -> Sender<Infallible> {
        let pid = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
        let pid = pid.expect("a process id");
        let (watchdog, dropped) = mpsc::channel();
        thread::spawn(move || {
            if let Err(RecvTimeoutError::Timeout) = dropped.recv_timeout(MOST) {
                // Nobody has waited for the child, so the id is still its own.
                kill_process(pid, Signal::KILL).ok();
            }
        });
        watchdog
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "the process failed: exit status: 7")]
    fn a_failure_is_noticed() {
        Process::spawn("sh", &["-c", "exit 7"], &[]).join();
    }

    #[test]
    #[should_panic(expected = "the process ended without another line")]
    fn the_end_of_a_process_is_not_mistaken_for_a_line() {
        Process::spawn("true", &[], &[]).line();
    }
}
