//! Programs of others that clients may meet in place of Redis: two proxies, and a server for tests.

use std::{
    fs::{self, File},
    net::TcpStream,
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::{
    child::{self, ChildProcess, fetched},
    port::free_port,
    server::RedisServer,
    wait::{HANG, eventually_blocking},
};

/// A running program on a free port of 127.0.0.1, stopped when the value is dropped.
#[derive(Debug)]
pub struct ThirdParty {
    port: u16,
    // Kept for their drops.
    _process: ChildProcess,
    _folder: TempDir,
}

impl ThirdParty {
    /// Starts `HAProxy` in front of a server. It closes a connection that was silent in one direction for two seconds.
    pub fn haproxy(server: &RedisServer) -> Self {
        let program = || child::command("/usr/sbin/haproxy", Some("haproxy"));
        Self::start(program, &["-db", "-f"], |port| {
            format!(
                "defaults\n mode tcp\n timeout connect 2s\n timeout client 2s\n timeout server 2s\n\
                 listen redis\n bind 127.0.0.1:{port}\n server redis 127.0.0.1:{}\n",
                server.port()
            )
        })
    }

    /// Starts twemproxy in front of servers, and divides the keys among them.
    pub fn twemproxy(servers: &[RedisServer]) -> Self {
        let program = || {
            let mut command = child::command("/usr/sbin/nutcracker", Some("nutcracker"));
            // The port for statistics is fixed by default.
            command.args(["-a", "127.0.0.1", "-s", &free_port().to_string()]);
            command
        };
        let lines = servers.iter();
        let lines = lines.map(|server| format!("  - 127.0.0.1:{}:1", server.port()));
        let servers = lines.collect::<Vec<_>>().join("\n");
        Self::start(program, &["-c"], |port| {
            format!(
                "pool:\n  listen: 127.0.0.1:{port}\n  redis: true\n  hash: fnv1a_64\n  distribution: ketama\n  \
                 auto_eject_hosts: false\n  servers:\n{servers}\n"
            )
        })
    }

    /// Starts fakeredis, a server for tests.
    pub fn fakeredis() -> Self {
        Self::fakeredis_after("")
    }

    /// Starts fakeredis without its Lua library: it runs no scripts.
    pub fn fakeredis_without_lua() -> Self {
        Self::fakeredis_after(
            "import sys\nsys.modules.update({'lupa': None, 'lupa.lua51': None})\n",
        )
    }

    fn fakeredis_after(lines: &str) -> Self {
        let python = fetched("python/bin/python", "Python");
        let program = || child::command(&python, None);
        Self::start(program, &[], |port| {
            format!(
                "{lines}from fakeredis import TcpFakeServer\nTcpFakeServer(('127.0.0.1', {port})).serve_forever()\n"
            )
        })
    }

    fn start(
        program: impl Fn() -> Command,
        arguments: &[&str],
        configuration: impl Fn(u16) -> String,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [file, log] = ["configuration", "log"].map(|name| folder.path().join(name));
        // Another process may take the port between the check and the bind.
        for _ in 0..20 {
            let port = free_port();
            fs::write(&file, configuration(port)).expect("a file in the temporary folder");
            let output = File::create(&log).expect("a file in the temporary folder");
            let mut command = program();
            command.args(arguments).arg(&file).stdin(Stdio::null());
            command.stdout(output.try_clone().expect("one more file"));
            let mut process = ChildProcess::spawn({
                command.stderr(output);
                command
            });
            let mut has_ended = false;
            eventually_blocking(HANG, "the program accepts connections or ends", || {
                has_ended = process.ended().is_some();
                has_ended || TcpStream::connect(("127.0.0.1", port)).is_ok()
            });
            if !has_ended {
                return Self {
                    port,
                    _process: process,
                    _folder: folder,
                };
            }
        }
        let log = fs::read_to_string(log).expect("text");
        panic!("the program does not start:\n{log}");
    }

    /// Returns the url for a client.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}
