//! A PostgreSQL server, for the example that stores accounts in one. It is here, and not beside the only test that uses it, because
//! it needs child processes that end with the test, and ports that no other test process claims.

use std::{
    fs::{self, File},
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Stdio,
};

use rustix::process::{Signal, geteuid};
use tempfile::TempDir;

use crate::{
    child::{self, ChildProcess},
    port::free_port,
    wait::{HANG, eventually_blocking},
};

/// The user that runs the server if the tests run as root: the server refuses to.
const NOBODY: u32 = 65_534;

/// A server on 127.0.0.1 with an empty database, which ends when this is dropped.
#[derive(Debug)]
pub struct PostgresServer {
    process: ChildProcess,
    port: u16,
    _folder: TempDir,
}

impl PostgresServer {
    /// Starts a server with these settings, in addition to those that suit tests.
    pub fn start(settings: &[&str]) -> Self {
        let programs = programs();
        let folder = tempfile::tempdir().expect("a temporary folder");
        if geteuid().is_root() {
            chown(folder.path(), Some(NOBODY), Some(NOBODY)).expect("root gives folders away");
        }
        let data = folder.path().join("data");
        let log_path = folder.path().join("log");
        let log = File::create(&log_path).expect("a file in a folder of ours");
        let run = |program: &str| {
            let mut command = child::command_with(user(), programs.join(program));
            let log = || Stdio::from(log.try_clone().expect("one more handle"));
            command.current_dir(folder.path());
            command.stdin(Stdio::null()).stdout(log()).stderr(log());
            command
        };

        let mut initdb = run("initdb");
        let options = [
            "--auth=trust",
            "--username=postgres",
            "--no-sync",
            "--no-locale",
        ];
        initdb.args(options).arg("--encoding=UTF8").arg(&data);
        let status = initdb.status().expect("initdb starts");
        assert!(status.success(), "initdb: {status}: {}", read(&log_path));

        let port = free_port();
        let mut postgres = run("postgres");
        postgres
            .arg("-D")
            .arg(&data)
            .args(["-p", &port.to_string()]);
        let for_tests = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "fsync=off",
        ];
        for setting in for_tests.iter().chain(settings) {
            postgres.args(["-c", setting]);
        }
        let mut process = ChildProcess::spawn(postgres);
        eventually_blocking(HANG, "the server accepts connections", || {
            assert!(process.ended().is_none(), "{}", read(&log_path));
            let mut is_ready = run("pg_isready");
            is_ready.args(["--quiet", "--host=127.0.0.1", "--port", &port.to_string()]);
            is_ready.status().expect("pg_isready starts").success()
        });
        Self {
            process,
            port,
            _folder: folder,
        }
    }

    /// Returns the url of its database.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // If it were killed, its shared memory would remain. After this signal it ends its connections and cleans up.
        if self.process.ended().is_none() {
            self.process.signal(Signal::INT);
            eventually_blocking(HANG, "the server ends", || self.process.ended().is_some());
        }
    }
}

/// Returns the options by which `setpriv` starts a program as another user than root.
fn user() -> &'static [&'static str] {
    if geteuid().is_root() {
        &["--reuid=65534", "--regid=65534", "--clear-groups"]
    } else {
        &[]
    }
}

/// Returns the folder with the programs of the newest version. On Debian, it is not on the `PATH`.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let folders = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    let version = |folder: &PathBuf| {
        let name = folder.parent()?.file_name()?.to_str()?;
        name.parse::<u32>().ok()
    };
    let newest = folders
        .filter(|folder| folder.join("initdb").is_file())
        .max_by_key(version);
    newest.expect(
        "PostgreSQL is not installed: run `tests/run --all`, or install the package postgresql",
    )
}

fn read(log: &Path) -> String {
    fs::read_to_string(log).unwrap_or_default()
}
