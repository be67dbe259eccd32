//! A primary with replicas, and the sentinels that make one of them the primary when it dies.

use std::{collections::HashMap, sync::Arc};

use redis::Value;

use crate::{
    certificates::Certificates,
    server::{AskClients, Kind, RedisServer, RedisServerBuilder},
    wait::{HANG, eventually_blocking},
};

/// The name that the sentinels have for the servers that they watch.
const SERVICE: &str = "locks";

/// The user and the password of the sentinels on servers with an access control list.
const WATCHER: (&str, &str) = ("watcher", "watcher");

const SERVERS: usize = 3;
const SENTINELS: usize = 3;

/// One primary, two replicas and three sentinels, two of which must agree; all are stopped when the value is dropped.
///
/// The sentinels consider a server dead after half a second without a reply. The methods block, some of them for seconds.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<RedisServer>,
    watchers: Vec<RedisServer>,
    options: SentinelsBuilder,
}

/// The settings of [`Sentinels`] that are to be started.
#[derive(Debug, Clone, Default)]
#[must_use = "a builder starts nothing by itself"]
pub struct SentinelsBuilder {
    kind: Kind,
    password: Option<String>,
    user: Option<User>,
    sentinel_password: Option<String>,
    tls: Option<Arc<Certificates>>,
}

#[derive(Debug, Clone)]
struct User {
    name: String,
    password: String,
    rules: String,
}

impl SentinelsBuilder {
    /// Starts servers of another kind than the distribution's.
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Makes the servers with the data ask clients for a password.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Gives clients a separate user on the servers with the data, with these rules of the access control list.
    pub fn user(mut self, name: &str, password: &str, rules: &str) -> Self {
        self.user = Some(User {
            name: name.to_owned(),
            password: password.to_owned(),
            rules: rules.to_owned(),
        });
        self
    }

    /// Makes the sentinels ask clients for a separate password.
    pub fn sentinel_password(mut self, password: &str) -> Self {
        self.sentinel_password = Some(password.to_owned());
        self
    }

    /// Makes all of them use TLS, among themselves and with clients. The harness itself still connects without TLS.
    pub fn tls(mut self, certificates: &Arc<Certificates>) -> Self {
        self.tls = Some(Arc::clone(certificates));
        self
    }

    /// Starts them and waits until the sentinels know each other and both replicas, which have all data.
    pub fn start(self) -> Sentinels {
        let primary = self.data_server().start();
        let source = primary.announced_port();
        let mut servers = vec![primary];
        for _ in 1..SERVERS {
            servers.push(self.data_server().replica_of(source).start());
        }
        let lines = self.sentinel_lines(source);
        let mut watchers = Vec::new();
        for _ in 0..SENTINELS {
            let mut sentinel = RedisServer::builder()
                .kind(self.kind)
                .sentinel(lines.clone());
            if let Some(password) = &self.sentinel_password {
                sentinel = sentinel.password(password);
            }
            if let Some(certificates) = &self.tls {
                sentinel = sentinel.tls(certificates, AskClients::Never);
            }
            let sentinel = sentinel.start();
            self.quicken(&sentinel);
            watchers.push(sentinel);
        }
        let started = Sentinels {
            servers,
            watchers,
            options: self,
        };
        started.whole();
        started
    }

    fn data_server(&self) -> RedisServerBuilder {
        // By default, a replica's first copy begins only after five seconds, so that it can serve other replicas, too.
        let mut server = RedisServer::builder()
            .kind(self.kind)
            .setting("repl-diskless-sync", "yes")
            .setting("repl-diskless-sync-delay", "0");
        if let Some(password) = &self.password {
            server = server.password(password);
        }
        if let Some(User {
            name,
            password,
            rules,
        }) = &self.user
        {
            server = server.acl(&format!("user {name} on >{password} {rules}"));
            if let Some(password) = &self.password {
                server = server.acl(&format!("user default on >{password} ~* &* +@all"));
            }
        }
        if let Some(certificates) = &self.tls {
            server = server
                .tls(certificates, AskClients::Never)
                .setting("tls-replication", "yes");
        }
        if self.user.is_some() {
            let (user, password) = WATCHER;
            server = server.acl(&format!("user {user} on >{password} ~* &* +@all"));
        }
        if let Some((user, password)) = self.replication() {
            server = server
                .setting("masteruser", user)
                .setting("masterauth", password);
        }
        server
    }

    /// Returns the user and the password for replicas, if servers ask for them.
    fn replication(&self) -> Option<(&str, &str)> {
        if self.user.is_some() {
            return Some(RedisServer::HARNESS);
        }
        let password = self.password.as_deref()?;
        Some(("default", password))
    }

    /// Makes a sentinel connect sooner, and exchange news with the others more often, than by default.
    ///
    /// By default, it connects to a new primary up to a second after it found it. If `down-after-milliseconds` is shorter, it
    /// considers the new primary dead meanwhile, and the next fail-over follows at once. It also takes seconds until all sentinels
    /// know each other.
    fn quicken(&self, sentinel: &RedisServer) {
        if self.kind != Kind::Redis62 {
            // A sentinel asks each replica once a second, and promotes none that was silent for five of these periods.
            sentinel.cli(&["SENTINEL", "DEBUG", "PING-PERIOD", "250"]);
            sentinel.cli(&["SENTINEL", "DEBUG", "PUBLISH-PERIOD", "250"]);
            sentinel.cli(&["SENTINEL", "DEBUG", "INFO-PERIOD", "500"]);
        }
    }

    fn sentinel_lines(&self, primary: u16) -> Vec<String> {
        let down_after = match self.kind {
            // Redis 6.2 does not know the `DEBUG` command that makes a sentinel quicker.
            Kind::Redis62 => 1500,
            _ => 500,
        };
        let mut lines = vec![
            format!("sentinel monitor {SERVICE} 127.0.0.1 {primary} 2"),
            format!("sentinel down-after-milliseconds {SERVICE} {down_after}"),
            // With a shorter one, a sentinel gives up before it has seen that the chosen replica has become a primary.
            format!("sentinel failover-timeout {SERVICE} 3000"),
            format!("sentinel parallel-syncs {SERVICE} 2"),
        ];
        let watcher = self.user.as_ref().map(|_| WATCHER);
        if let Some((user, password)) = watcher.or(self.replication()) {
            lines.push(format!("sentinel auth-user {SERVICE} {user}"));
            lines.push(format!("sentinel auth-pass {SERVICE} {password}"));
        }
        lines
    }
}

impl Sentinels {
    /// Starts them with the defaults: the distribution's servers, no password.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns the defaults, to be changed.
    pub fn builder() -> SentinelsBuilder {
        SentinelsBuilder::default()
    }

    /// Kills the primary, and returns it.
    pub fn kill_primary(&self) -> &RedisServer {
        let primary = self.primary();
        primary.kill9();
        primary
    }

    /// Starts a killed server again as a replica, empty, and waits until it has all data.
    ///
    /// Another server must be the primary already: if the killed one came back as the primary, the replicas would copy its
    /// empty data.
    pub fn rejoin(&self, killed: &RedisServer) {
        killed.restart_as_replica_of(self.primary().announced_port());
        self.whole();
    }

    /// Waits until the sentinels agree that another server than `killed` is the primary, and until that server takes writes.
    pub fn failed_over(&self, killed: &RedisServer) {
        eventually_blocking(HANG, "another server is the primary", || {
            self.agreed()
                .is_some_and(|primary| primary.port() != killed.port() && takes_writes(primary))
        });
    }

    /// Waits until nothing is missing: all sentinels that run agree on a primary and know its replicas, which have all its data.
    pub fn whole(&self) {
        eventually_blocking(HANG, "a primary with all its replicas", || {
            self.agreed().is_some_and(|primary| {
                takes_writes(primary)
                    && self.servers.iter().all(|server| {
                        server.port() == primary.port() || follows(server, primary.announced_port())
                    })
            }) && self.running_sentinels().all(sees_all)
        });
    }

    /// Withholds further writes from every replica.
    ///
    /// The replicas are stopped and their connections to the primary closed: otherwise they would read the writes from the
    /// connections after the stop.
    pub(crate) fn cut_replicas(&self) {
        for replica in self.replicas() {
            replica.stop();
        }
        self.primary().cli(&["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// Cuts a server off from the sentinels for good, while clients and replicas still reach it. For servers with a
    /// [user](SentinelsBuilder::user).
    pub fn cut_off(&self, server: &RedisServer) {
        assert!(
            self.options.user.is_some(),
            "the sentinels have a user of their own only if the clients have one"
        );
        let (watcher, _) = WATCHER;
        // A connection whose AUTH is refused continues as the default user.
        for user in [watcher, "default"] {
            server.cli(&["ACL", "SETUSER", user, "off"]);
        }
        server.cli(&["CLIENT", "KILL", "USER", watcher]);
    }

    /// Keeps one replica from following the next primary. The leader of the next fail-over waits for it for three seconds after the
    /// promotion, or longer if the fail-over is [prolonged](Self::prolong_fail_over).
    ///
    /// Meanwhile, the leader names the old primary with the epoch of the new one. For servers with a [user](SentinelsBuilder::user).
    pub fn keep_a_replica_behind(&self) {
        assert!(
            self.options.user.is_some(),
            "without a password, the replica could follow"
        );
        let replicas = self.replicas();
        let replica = replicas.last().expect("two replicas");
        replica.cli(&["CONFIG", "SET", "masterauth", "wrong"]);
        replica.cli(&["CONFIG", "SET", "replica-priority", "0"]);
        for sentinel in &self.watchers {
            eventually_blocking(HANG, "no sentinel would promote that replica", || {
                let known = sentinel.probe(&["SENTINEL", "REPLICAS", SERVICE]);
                let known = known.map(redis::from_redis_value::<Vec<HashMap<String, String>>>);
                let known = known.ok().and_then(Result::ok).unwrap_or_default();
                let port = replica.announced_port().to_string();
                known
                    .iter()
                    .any(|known| known["port"] == port && known["slave-priority"] == "0")
            });
        }
    }

    /// Makes the leader of a fail-over wait for twenty seconds after the promotion for a replica that is [kept
    /// behind](Self::keep_a_replica_behind).
    ///
    /// Call it after the promotion: sentinels repeat a fail-over that failed, for example because each voted for itself, after twice
    /// this time.
    pub fn prolong_fail_over(&self) {
        for sentinel in &self.watchers {
            sentinel.cli(&["SENTINEL", "SET", SERVICE, "failover-timeout", "20000"]);
        }
    }

    /// Returns whether two sentinels currently name different servers with the same epoch.
    pub fn differ_at_one_epoch(&self) -> bool {
        let named: Vec<_> = self
            .running_sentinels()
            .filter_map(named_with_epoch)
            .collect();
        named.iter().any(|(port, epoch)| {
            let mut others = named.iter();
            others.any(|other| other.0 != *port && other.1 == *epoch)
        })
    }

    /// Resumes all running servers, after the replicas were cut off.
    pub fn cont(&self) {
        for server in self.servers.iter().filter(|server| server.is_running()) {
            server.cont();
        }
    }

    /// Waits until the sentinels agree on a server, and returns it.
    pub fn primary(&self) -> &RedisServer {
        let mut agreed = None;
        eventually_blocking(HANG, "the sentinels agree", || {
            agreed = self.agreed();
            agreed.is_some()
        });
        agreed.expect("the wait is over")
    }

    /// Returns the port of the server that the sentinels name, if they currently agree.
    pub fn named(&self) -> Option<u16> {
        self.agreed().map(RedisServer::port)
    }

    /// Makes the sentinels choose another primary, and waits until nothing is missing.
    pub fn switch(&self) {
        let before = self.primary();
        // The command is refused while the last fail-over is too recent.
        eventually_blocking(HANG, "a sentinel begins", || {
            let begun = self.watchers[0].probe(&["SENTINEL", "FAILOVER", SERVICE]);
            begun.is_ok() || self.named() != Some(before.port())
        });
        self.failed_over(before);
        self.whole();
    }

    /// Returns the running servers with data that are not the primary.
    pub fn replicas(&self) -> Vec<&RedisServer> {
        let primary = self.primary().port();
        let servers = self.servers.iter();
        servers
            .filter(|server| server.is_running() && server.port() != primary)
            .collect()
    }

    /// Returns the servers with data, whatever their roles are now. The first one was the primary at the start.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Returns the sentinels, for a test to stop and kill.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.watchers
    }

    /// Returns the name by which the sentinels call the servers that they watch.
    pub fn service(&self) -> &'static str {
        SERVICE
    }

    /// Returns the url for clients: `redis+sentinel://user:password@host:port,…/service?sentinel_password=…`.
    pub fn url(&self) -> String {
        let credentials = match (&self.options.user, &self.options.password) {
            (Some(user), _) => format!("{}:{}@", user.name, user.password),
            (None, Some(password)) => format!(":{password}@"),
            (None, None) => String::new(),
        };
        let hosts: Vec<String> = self
            .watchers
            .iter()
            .map(|sentinel| format!("127.0.0.1:{}", sentinel.announced_port()))
            .collect();
        let scheme = if self.options.tls.is_some() {
            "rediss"
        } else {
            "redis"
        };
        let url = format!(
            "{scheme}+sentinel://{credentials}{}/{SERVICE}",
            hosts.join(",")
        );
        match &self.options.sentinel_password {
            Some(password) => format!("{url}?sentinel_password={password}"),
            None => url,
        }
    }

    fn running_sentinels(&self) -> impl Iterator<Item = &RedisServer> {
        let watchers = self.watchers.iter();
        watchers.filter(|sentinel| sentinel.is_running())
    }

    /// Returns the server that all answering sentinels name, if at least two answer.
    fn agreed(&self) -> Option<&RedisServer> {
        let ports: Vec<u16> = self.running_sentinels().filter_map(primary_port).collect();
        let (first, others) = ports.split_first()?;
        if others.is_empty() || others.iter().any(|port| port != first) {
            return None;
        }
        self.servers
            .iter()
            .find(|server| server.announced_port() == *first)
    }
}

fn primary_port(sentinel: &RedisServer) -> Option<u16> {
    let reply = sentinel.probe(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
    let (_, port): (String, u16) = redis::from_redis_value(reply.ok()?).ok()?;
    Some(port)
}

/// Returns the port and the epoch in a sentinel's description of the primary.
fn named_with_epoch(sentinel: &RedisServer) -> Option<(String, String)> {
    let reply = sentinel.probe(&["SENTINEL", "MASTER", SERVICE]).ok()?;
    let mut fields: HashMap<String, String> = redis::from_redis_value(reply).ok()?;
    Some((fields.remove("port")?, fields.remove("config-epoch")?))
}

/// Returns whether the server itself reports that it takes writes. The sentinels may know its new role before it does.
fn takes_writes(server: &RedisServer) -> bool {
    replication(server).is_some_and(|state| state.contains("role:master\r\n"))
}

fn follows(server: &RedisServer, primary: u16) -> bool {
    replication(server).is_some_and(|state| {
        state.contains(&format!("master_port:{primary}\r\n"))
            && state.contains("master_link_status:up\r\n")
    })
}

fn replication(server: &RedisServer) -> Option<String> {
    if !server.is_running() {
        return None;
    }
    let reply: Value = server.probe(&["INFO", "replication"]).ok()?;
    redis::from_redis_value(reply).ok()
}

/// Returns whether a sentinel could lead a fail-over: it knows the other sentinels, and the state of all servers.
fn sees_all(sentinel: &RedisServer) -> bool {
    let ask = |command: &str| sentinel.probe(&["SENTINEL", command, SERVICE]).ok();
    let Some(Ok(primary)) = ask("MASTER").map(redis::from_redis_value::<HashMap<String, String>>)
    else {
        return false;
    };
    let Some(Ok(replicas)) =
        ask("REPLICAS").map(redis::from_redis_value::<Vec<HashMap<String, String>>>)
    else {
        return false;
    };
    primary["flags"] == "master"
        // The number includes killed sentinels: a sentinel does not forget them.
        && primary["num-other-sentinels"] == (SENTINELS - 1).to_string()
        && replicas.len() == SERVERS - 1
        && replicas.iter().all(|replica| {
            replica["flags"] == "slave"
                && replica["master-port"] == primary["port"]
                && replica["master-link-status"] == "ok"
        })
}
