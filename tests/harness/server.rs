//! Real servers for tests: Redis, of several versions, and Valkey.

use std::{
    env,
    fs::{self, File},
    path::PathBuf,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use redis::{RedisResult, Value};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{
    child::{self, ChildProcess, fetched},
    shifted_clock::ShiftedClock,
    wait::{HANG, eventually_blocking},
};

mod builder;
mod queries;

pub use self::builder::{AskClients, RedisServerBuilder};
use self::builder::{Role, replica_of};

/// The time-out of raw commands, which servers answer at once, unless a test makes them slow.
const REPLY_WITHIN: Duration = Duration::from_secs(20);

/// The time-out of commands that are retried: the server may not have started yet, or may be stopped.
pub(crate) const PROBE_WITHIN: Duration = Duration::from_millis(500);

/// The kind of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// The distribution's redis-server, on the `PATH`: Redis 7 on Debian 12.
    #[default]
    Distribution,
    /// Redis 6.2, the oldest that is supported.
    Redis62,
    /// Redis 8.6.
    Redis86,
    /// Valkey 9.
    Valkey9,
}

impl Kind {
    /// Returns the kinds on which claims about servers are tested: the distribution's alone, or all of them if `ALL_SERVERS` is set.
    /// `tests/run --all` sets it, and fetches the others.
    pub fn tested() -> Vec<Self> {
        let mut kinds = vec![Self::Distribution];
        if env::var_os("ALL_SERVERS").is_some() {
            kinds.extend([Self::Redis62, Self::Redis86, Self::Valkey9]);
        }
        kinds
    }

    fn program(self) -> String {
        match self {
            Self::Distribution => "redis-server".to_owned(),
            Self::Redis62 => fetched("redis-6.2/redis-server", "Redis 6.2"),
            Self::Redis86 => fetched("redis-8.6/redis-server", "Redis 8.6"),
            Self::Valkey9 => fetched("valkey-9/valkey-server", "Valkey 9"),
        }
    }
}

/// Makes a test of each function on each kind of server, which `start` starts. Only `tests/run --all` runs those on fetched servers.
///
/// The file that uses this macro defines both: `fn start(kind: Kind) -> RedisServer` and
/// `async fn claim(server: &RedisServer)`.
#[macro_export]
macro_rules! on_every_kind {
    ($start:ident: $($claim:ident)*) => {
        $crate::on_every_kind! { @kind [] distribution Distribution $start: $($claim)* }
        $crate::on_every_kind! { @fetched redis_6_2 Redis62 $start: $($claim)* }
        $crate::on_every_kind! { @fetched redis_8_6 Redis86 $start: $($claim)* }
        $crate::on_every_kind! { @fetched valkey_9 Valkey9 $start: $($claim)* }
    };
    (@fetched $($kind_and_claims:tt)*) => {
        $crate::on_every_kind! { @kind [#[ignore = "fetched by `tests/run --all`"]] $($kind_and_claims)* }
    };
    (@kind $attributes:tt $module:ident $kind:ident $start:ident: $($claim:ident)*) => {
        mod $module {
            $($crate::on_every_kind! { @test $attributes $kind $start $claim })*
        }
    };
    (@test [$($attribute:tt)*] $kind:ident $start:ident $claim:ident) => {
        #[tokio::test]
        $($attribute)*
        async fn $claim() {
            super::$claim(&super::$start($crate::Kind::$kind)).await;
        }
    };
}

/// A server without disk on a free port of 127.0.0.1, stopped when the value is dropped.
///
/// It also ends when the test panics, and when the test process is killed. Its methods block.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    /// `Some` if the server has certificates.
    tls_port: Option<u16>,
    options: RedisServerBuilder,
    folder: TempDir,
    // `None` between `kill9` and `restart`.
    process: Mutex<Option<ChildProcess>>,
}

impl RedisServer {
    /// The user and the password of the harness on servers with an access control list.
    pub(crate) const HARNESS: (&str, &str) = ("harness", "harness");

    /// The user and the password of clients that may not run scripts.
    pub const WITHOUT_SCRIPTS: (&str, &str) = ("plain", "word");

    /// Starts a server with the defaults: no password, no persistence, debug commands allowed.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns the defaults, to be changed.
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::default()
    }

    /// Stops the process (`SIGSTOP`): connections stay, nothing answers.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes a stopped process (`SIGCONT`).
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the process, and with it all data.
    pub fn kill9(&self) {
        let process = self.process.lock().expect("no poison").take();
        drop(process.expect("the server was killed before"));
    }

    /// Restarts a killed server on the same port, empty, and waits until it answers.
    pub fn restart(&self) {
        self.restart_with(&[]);
    }

    /// Like [`restart`](Self::restart), as a replica of the server on this port.
    pub(crate) fn restart_as_replica_of(&self, port: u16) {
        self.restart_with(&replica_of(port));
    }

    /// Removes the files of a killed server that has the setting `appendonly`, so that it restarts empty.
    pub fn forget(&self) {
        assert!(
            !self.is_running(),
            "a running server would write them again"
        );
        let data = self.folder.path().join("appendonlydir");
        fs::remove_dir_all(data).expect("a server with `appendonly`");
    }

    /// Runs one raw command as a client with all rights; an error reply is a panic.
    pub fn cli(&self, command: &[&str]) -> Value {
        self.try_cli(command)
            .unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Runs one raw command as a client with all rights.
    ///
    /// # Errors
    ///
    /// The server's error reply, or an error of the connection.
    pub fn try_cli(&self, command: &[&str]) -> RedisResult<Value> {
        self.ask(command, REPLY_WITHIN)
    }

    /// Like [`try_cli`](Self::try_cli) with a short time-out, for a server that may be killed or stopped.
    pub(crate) fn probe(&self, command: &[&str]) -> RedisResult<Value> {
        self.ask(command, PROBE_WITHIN)
    }

    /// Adds a user who may do everything but run scripts.
    pub fn add_user_without_scripts(&self) {
        let (user, password) = Self::WITHOUT_SCRIPTS;
        let password = format!(">{password}");
        let rules = ["on", &password, "~*", "&*", "+@all", "-@scripting"];
        self.cli(&[&["ACL", "SETUSER", user], &rules[..]].concat());
    }

    /// Creates a user with these rights and the password `word`, or replaces the rights of one.
    pub fn allow(&self, user: &str, rights: &[String]) {
        let mut command = vec!["ACL", "SETUSER", user, "on", ">word", "resetchannels"];
        command.extend(rights.iter().map(String::as_str));
        self.cli(&command);
    }

    /// Returns the url for a client without a name, with the password if there is one.
    pub fn url(&self) -> String {
        match &self.options.password {
            Some(password) => self.url_as("", password),
            None => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// Returns the url for a client with this name (empty for the default one) and password.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@127.0.0.1:{}", self.port)
    }

    /// Returns the url for the user that [`add_user_without_scripts`](Self::add_user_without_scripts) adds.
    pub fn url_without_scripts(&self) -> String {
        let (user, password) = Self::WITHOUT_SCRIPTS;
        self.url_as(user, password)
    }

    /// Returns the url for a client with TLS, without a user or password. It names the host, not its address.
    pub fn tls_url(&self) -> String {
        format!("rediss://localhost:{}", self.tls_port())
    }

    /// Returns the port for TLS on 127.0.0.1.
    pub fn tls_port(&self) -> u16 {
        self.tls_port
            .expect("the builder was given no certificates")
    }

    /// Returns the port for other servers and their clients: the one for TLS, if the server has one.
    pub(crate) fn announced_port(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }

    /// Returns the path of the server's unix socket.
    pub fn unix_socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// Returns the port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the id of the server's process.
    pub fn pid(&self) -> u32 {
        let process = self.process.lock().expect("no poison");
        process.as_ref().expect("the server was killed").id()
    }

    /// Returns whether the server has a process, which it lacks between [`kill9`](Self::kill9) and [`restart`](Self::restart).
    pub fn is_running(&self) -> bool {
        self.process.lock().expect("no poison").is_some()
    }

    /// Returns the log of the server since its last start.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn restart_with(&self, arguments: &[String]) {
        // Connections of the old process may still hold the port for a moment.
        eventually_blocking(HANG, "the port is free again", || self.launch(arguments));
    }

    /// Starts the process. Returns whether it got its port.
    fn launch(&self, arguments: &[String]) -> bool {
        let mut command = self.command();
        command.args(arguments);
        let mut process = ChildProcess::spawn(command);
        let deadline = Instant::now() + HANG;
        let mut has_started = self.answers_as(process.id());
        while !has_started && process.ended().is_none() {
            let is_late = Instant::now() > deadline;
            assert!(!is_late, "redis-server does not answer:\n{}", self.log());
            thread::sleep(Duration::from_millis(2));
            has_started = self.answers_as(process.id());
        }
        if !has_started {
            let log = self.log();
            assert!(
                log.contains("Address already in use"),
                "redis-server ended instead of starting:\n{log}"
            );
            return false;
        }
        *self.process.lock().expect("no poison") = Some(process);
        true
    }

    fn command(&self) -> std::process::Command {
        let log = File::create(self.log_path()).expect("a log in the temporary folder");
        let mut command = child::command(&self.options.kind.program(), Some("redis-server"));
        command
            .envs(
                self.options
                    .clock
                    .iter()
                    .flat_map(ShiftedClock::environment),
            )
            .stdin(std::process::Stdio::null())
            .stderr(log.try_clone().expect("one more file"))
            .stdout(log);
        if let Role::Sentinel(_) = self.options.role {
            command.arg(self.configuration_path()).arg("--sentinel");
            return command;
        }
        command
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .arg("--unixsocket")
            .arg(self.unix_socket())
            .arg("--dir")
            .arg(self.folder.path())
            .args(&self.options.arguments);
        if let Role::ClusterNode = self.options.role {
            command.args(["--cluster-enabled", "yes"]);
        }
        // Redis 6.2 always allows debug commands, and does not know the setting.
        if self.options.kind != Kind::Redis62 {
            command.args(["--enable-debug-command", "yes"]);
        }
        if let Some(password) = &self.options.password {
            command.args(["--requirepass", password]);
        }
        for pair in self.tls_settings().chunks(2) {
            command.arg(format!("--{}", pair[0])).arg(&pair[1]);
        }
        if !self.options.acl.is_empty() {
            command.arg("--aclfile").arg(self.write_acl());
        }
        command
    }

    /// Writes the settings of a sentinel to a file, which the sentinel extends.
    fn write_configuration(&self) {
        let Role::Sentinel(lines) = &self.options.role else {
            return;
        };
        let password = self.options.password.as_ref();
        let own = [
            format!("port {}", self.port),
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", self.folder.path().display()),
            password.map_or(String::new(), |password| format!("requirepass {password}")),
        ];
        let mut tls: Vec<String> = self
            .tls_settings()
            .chunks(2)
            .map(|pair| pair.join(" "))
            .collect();
        if !tls.is_empty() {
            tls.push("tls-replication yes".to_owned());
        }
        let text = [&own, lines.as_slice(), &tls].concat().join("\n") + "\n";
        fs::write(self.configuration_path(), text).expect("a file in the temporary folder");
    }

    /// Returns the settings for TLS: each name is followed by its value.
    fn tls_settings(&self) -> Vec<String> {
        let Some((certificates, ask)) = &self.options.tls else {
            return Vec::new();
        };
        let [certificate, key, authority] = certificates.write(self.folder.path());
        let path = |path: PathBuf| path.to_str().expect("a path that is text").to_owned();
        let ask = match ask {
            AskClients::Always => "yes",
            AskClients::Never => "no",
        };
        [
            ("tls-port", self.tls_port().to_string()),
            ("tls-cert-file", path(certificate)),
            ("tls-key-file", path(key)),
            ("tls-ca-cert-file", path(authority)),
            ("tls-auth-clients", ask.to_owned()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
    }

    /// Writes the lines of the test, and a user with all rights for the harness, to a file.
    fn write_acl(&self) -> PathBuf {
        let path = self.folder.path().join("users.acl");
        let (user, password) = Self::HARNESS;
        let harness = format!("user {user} on >{password} ~* &* +@all\n");
        let lines = self.options.acl.join("\n");
        fs::write(&path, format!("{harness}{lines}\n")).expect("a file in the temporary folder");
        path
    }

    /// Returns whether this process accepts commands, and not another server on the same port.
    fn answers_as(&self, id: u32) -> bool {
        let Ok(info) = self.ask(&["INFO", "server"], PROBE_WITHIN) else {
            return false;
        };
        let info: String = redis::from_redis_value(info).expect("text");
        let ours = format!("process_id:{id}");
        // While the server loads a data set, it answers INFO but not PING.
        info.lines().any(|line| line == ours) && self.ask(&["PING"], PROBE_WITHIN).is_ok()
    }

    fn ask(&self, command: &[&str], within: Duration) -> RedisResult<Value> {
        let (name, arguments) = command.split_first().expect("a command");
        // Each command has a new connection, so that a test which kills clients breaks no later command.
        let client = redis::Client::open(self.admin_url())?;
        let mut connection = client.get_connection_with_timeout(within)?;
        connection.set_read_timeout(Some(within))?;
        redis::cmd(name).arg(arguments).query(&mut connection)
    }

    fn admin_url(&self) -> String {
        if self.options.acl.is_empty() {
            self.url()
        } else {
            let (user, password) = Self::HARNESS;
            self.url_as(user, password)
        }
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.lock().expect("no poison");
        process
            .as_ref()
            .expect("the server was killed")
            .signal(signal);
    }

    fn configuration_path(&self) -> PathBuf {
        self.folder.path().join("configuration")
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, path::Path, thread};

    use super::*;

    fn is_running(pid: u32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn a_dropped_server_leaves_no_process_and_no_files() {
        let server = RedisServer::start();
        let (pid, folder) = (server.pid(), server.folder.path().to_owned());
        assert!(is_running(pid) && folder.exists());
        drop(server);
        assert!(!is_running(pid) && !folder.exists());
    }

    #[test]
    fn a_taken_port_is_noticed() {
        let mut server = RedisServer::start();
        server.kill9();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        server.port = taken.local_addr().unwrap().port();
        assert!(!server.launch(&[]));
    }

    #[test]
    fn the_server_dies_with_the_process_that_started_it() {
        // This test runs itself again, alone, in a process that never ends by itself.
        const MARK: &str = "LOCK_TESTS_HOLD_A_SERVER";
        if let Some(path) = std::env::var_os(MARK) {
            let server = RedisServer::start();
            fs::write(path, server.pid().to_string()).unwrap();
            loop {
                thread::park();
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let mut parent = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "server::tests::the_server_dies_with_the_process_that_started_it",
            ])
            .env(MARK, &file)
            // The killed process cannot clean up, so its files are in a folder that this test removes.
            .env("TMPDIR", folder.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut pid = None;
        eventually_blocking(HANG, "the server of the other process runs", || {
            pid = fs::read_to_string(&file)
                .ok()
                .and_then(|text| text.parse().ok());
            pid.is_some()
        });
        parent.kill().unwrap();
        parent.wait().unwrap();
        eventually_blocking(HANG, "its server is gone", || !is_running(pid.unwrap()));
    }
}
