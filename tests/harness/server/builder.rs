//! The settings of a server.

use std::sync::{Arc, Mutex};

use super::{Kind, RedisServer};
use crate::{
    certificates::Certificates,
    port::{free_port, free_port_and_bus},
    shifted_clock::ShiftedClock,
};

/// The settings of a [`RedisServer`] that is to be started.
#[derive(Debug, Clone, Default)]
#[must_use = "a builder starts nothing by itself"]
pub struct RedisServerBuilder {
    pub(super) kind: Kind,
    pub(super) role: Role,
    pub(super) arguments: Vec<String>,
    pub(super) password: Option<String>,
    pub(super) acl: Vec<String>,
    pub(super) clock: Option<ShiftedClock>,
    pub(super) tls: Option<(Arc<Certificates>, AskClients)>,
}

/// The policy of a server with TLS on certificates of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskClients {
    /// Only clients with a certificate are accepted.
    Always,
    /// No certificate is asked for.
    Never,
}

/// The role of a server's process.
#[derive(Debug, Clone, Default)]
pub(super) enum Role {
    /// Holds data by itself, or as the primary or a replica of others.
    #[default]
    Data,
    /// Holds the slots of a cluster, and talks to its other nodes on a second port.
    ClusterNode,
    /// Watches servers that hold data, which these lines of its configuration name.
    Sentinel(Vec<String>),
}

impl RedisServerBuilder {
    /// Starts a server of another kind than the distribution's.
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Adds a setting, as in `setting("maxmemory", "3mb")`.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.arguments
            .extend([format!("--{name}"), value.to_owned()]);
        self
    }

    /// Removes a command, as some providers do.
    pub fn without_command(mut self, name: &str) -> Self {
        let words = ["--rename-command", name, ""];
        self.arguments.extend(words.map(str::to_owned));
        self
    }

    /// Asks clients for `password`.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a line of the access control list, as in `acl("user alice on >pw ~* &* +@all")`.
    pub fn acl(mut self, line: &str) -> Self {
        self.acl.push(line.to_owned());
        self
    }

    /// Makes it read this wall clock.
    pub fn clock(mut self, clock: &ShiftedClock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// Makes it a replica of the server on this port.
    pub(crate) fn replica_of(mut self, port: u16) -> Self {
        self.arguments.extend(replica_of(port));
        self
    }

    /// Makes it a node of a cluster, which has no slots yet and knows no other node.
    pub(crate) fn cluster_node(mut self) -> Self {
        self.role = Role::ClusterNode;
        self
    }

    /// Makes it a sentinel with these lines in its configuration.
    pub(crate) fn sentinel(mut self, lines: Vec<String>) -> Self {
        self.role = Role::Sentinel(lines);
        self
    }

    /// Makes it also accept TLS, on a second port. Only the distribution's server is built with TLS.
    pub fn tls(mut self, certificates: &Arc<Certificates>, ask: AskClients) -> Self {
        self.tls = Some((Arc::clone(certificates), ask));
        self
    }

    /// Starts the server and waits until it answers.
    pub fn start(self) -> RedisServer {
        // Another process may take the port between the check and the bind.
        for _ in 0..20 {
            let server = RedisServer {
                port: match self.role {
                    Role::ClusterNode => free_port_and_bus(),
                    Role::Data | Role::Sentinel(_) => free_port(),
                },
                tls_port: self.tls.as_ref().map(|_| match self.role {
                    Role::ClusterNode => free_port_and_bus(),
                    Role::Data | Role::Sentinel(_) => free_port(),
                }),
                options: self.clone(),
                folder: tempfile::tempdir().expect("a temporary folder"),
                process: Mutex::new(None),
            };
            server.write_configuration();
            if server.launch(&[]) {
                return server;
            }
        }
        panic!("redis-server found no free port in twenty attempts");
    }
}

/// Returns the setting as separate arguments, since Redis 6.2 does not accept two values in one.
pub(super) fn replica_of(port: u16) -> [String; 3] {
    [
        "--replicaof".to_owned(),
        "127.0.0.1".to_owned(),
        port.to_string(),
    ]
}
