//! The address of a server: the data of a url that a connection needs, and the form of the url that may be shown.

use std::{collections::HashMap, fmt, sync::Arc};

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ProtocolVersion, RedisResult,
    aio::MultiplexedConnection,
};

use crate::{
    backend::redis::transport::address::{
        security::{OwnClient, Security, Transport},
        url::{ServerUrl, place, place_of},
    },
    credentials::{Credentials, CredentialsProvider},
    error::LockError,
    runtime::mutex::Mutex,
};

pub(crate) mod security;
pub(crate) mod url;

/// A server that a user named: by a url, or by a client.
#[derive(Clone)]
pub(crate) enum Named {
    Url(String),
    Client(Box<OwnClient>),
}

/// A server's address. Its shown form has no user, password or query.
#[derive(Clone)]
pub(crate) struct Address {
    /// The host and port, the database, and the version of the protocol to begin with. The user and password are in
    /// `credentials`.
    info: ConnectionInfo,
    pub(crate) transport: Transport,
    credentials: Option<Arc<dyn CredentialsProvider>>,
    /// The label of the manager that connects, if it was given one.
    label: Option<Arc<str>>,
    shown: String,
    /// The servers that have spoken the Redis protocol, by the shown form of their addresses, and whether each closed
    /// connections at unknown commands when it was last asked. Shared by all addresses that were derived from one.
    met: Arc<Mutex<HashMap<String, bool>>>,
}

impl Address {
    /// Returns the address of the first server of a url.
    pub(crate) fn of(url: &ServerUrl, security: &Security) -> Result<Self, LockError> {
        let (info, transport) = security.transport(url)?;
        let settings = info.redis_settings().clone().set_protocol(url.protocol);
        let settings = settings.set_db(url.database.into());
        let address = Self {
            info: info.set_redis_settings(settings),
            transport,
            credentials: url.credentials.clone().map(|given| Arc::new(given) as _),
            label: None,
            shown: url.shown.clone(),
            met: Arc::default(),
        };
        Ok(match place_of(&url.servers[0]) {
            Some((host, port)) => address.moved_to(host, port),
            None => address,
        })
    }

    /// Returns the address to which a user's own client connects.
    pub(crate) fn of_client(client: OwnClient) -> Self {
        let OwnClient { info, config } = client;
        let shown = match info.addr() {
            ConnectionAddr::Tcp(host, port) => place("redis", host, *port),
            ConnectionAddr::TcpTls { host, port, .. } => place("rediss", host, *port),
            other => format!("redis+unix://{other}"),
        };
        let settings = info.redis_settings().clone();
        let credentials = settings.password().map(|password| {
            let user = settings.username().unwrap_or_default();
            Arc::new(Credentials::new(user, password)) as _
        });
        Self {
            info: info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3)),
            transport: Transport::Client(config),
            credentials,
            label: None,
            shown,
            met: Arc::default(),
        }
    }

    /// Returns an address with these settings for another server.
    pub(crate) fn at(&self, host: &str, port: u16) -> Self {
        // The scheme without the part after its `+`.
        let scheme = self.shown.split(['+', ':']).next().unwrap_or_default();
        Self {
            shown: place(scheme, host, port),
            ..self.clone().moved_to(host, port)
        }
    }

    fn moved_to(mut self, to_host: &str, to_port: u16) -> Self {
        let mut addr = self.info.addr().clone();
        if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } =
            &mut addr
        {
            (*host, *port) = (to_host.to_owned(), to_port);
        }
        self.info = self.info.set_addr(addr);
        self
    }

    /// Returns this address for a manager: with its label, and with its own credentials, if it has any.
    pub(crate) fn for_manager(
        mut self,
        credentials: Option<&Arc<dyn CredentialsProvider>>,
        label: Option<&Arc<str>>,
    ) -> Self {
        self.credentials = credentials.cloned().or(self.credentials);
        self.label = label.cloned();
        self
    }

    /// Returns this address for a sentinel, which has its own users, and no databases.
    pub(crate) fn of_sentinel(self, credentials: Option<Arc<dyn CredentialsProvider>>) -> Self {
        Self {
            credentials,
            ..self.in_first_database()
        }
    }

    /// Returns this address with the database 0.
    pub(crate) fn in_first_database(mut self) -> Self {
        let settings = self.info.redis_settings().clone().set_db(0);
        self.info = self.info.set_redis_settings(settings);
        self
    }

    #[cfg(unix)]
    pub(crate) fn addr(&self) -> &ConnectionAddr {
        self.info.addr()
    }

    /// Returns the host and the port, like [`place_of`].
    pub(crate) fn place(&self) -> Option<(&str, u16)> {
        place_of(self.info.addr())
    }

    pub(crate) fn credentials(&self) -> Option<&Arc<dyn CredentialsProvider>> {
        self.credentials.as_ref()
    }

    pub(crate) fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    pub(crate) fn database(&self) -> i64 {
        self.info.redis_settings().db()
    }

    /// Returns `true` if the server may send messages on the connection of the commands. It may, unless the url asks for RESP2.
    pub(crate) fn pushes(&self) -> bool {
        self.info.redis_settings().protocol() == ProtocolVersion::RESP3
    }

    /// Returns the settings of the user's own client, if that opens the connections and logs in.
    pub(crate) fn client(&self) -> Option<&AsyncConnectionConfig> {
        match &self.transport {
            Transport::Client(config) => Some(config),
            Transport::Plain => None,
            #[cfg(feature = "tls")]
            Transport::Tls(_) => None,
        }
    }

    /// Opens a connection the way the user's own client does. Its driver runs on the caller's runtime, and ends when the last
    /// handle is dropped.
    pub(crate) async fn open(
        &self,
        credentials: Option<&Credentials>,
        protocol: ProtocolVersion,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let mut settings = self.info.redis_settings().clone().set_protocol(protocol);
        if let Some(Credentials { user, password, .. }) = credentials {
            // Without a name, the default user logs in, rather than a user of the client.
            let user = user.as_deref().unwrap_or("default");
            settings = settings.set_password(password).set_username(user);
        }
        let client = Client::open(self.info.clone().set_redis_settings(settings))?;
        client
            .get_multiplexed_async_connection_with_config(config)
            .await
    }

    /// Notes that a server here spoke the Redis protocol.
    pub(crate) fn note_spoke(&self) {
        let mut met = self.met.lock();
        met.entry(self.shown.clone()).or_insert(false);
    }

    /// Notes whether a server here closes connections at commands that it does not know, such as the greeting.
    pub(crate) fn note_closes_at_unknown(&self, closes: bool) {
        self.met.lock().insert(self.shown.clone(), closes);
    }

    /// Returns `true` if a server here closed connections at commands that it does not know when it was last asked.
    pub(crate) fn closes_at_unknown(&self) -> bool {
        self.met.lock().get(&self.shown) == Some(&true)
    }

    /// Returns `true` if a server here ever spoke the Redis protocol.
    pub(crate) fn has_spoken(&self) -> bool {
        self.met.lock().contains_key(&self.shown)
    }

    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::{Credentials, tests::given};

    fn parse(url: &str) -> Result<Address, LockError> {
        Address::of(&ServerUrl::parse(url)?, &Security::default())
    }

    #[test]
    fn the_shown_form_of_a_url_has_no_secret() {
        let secrets = [
            (
                "redis://user:hunter2@db.internal:6380/3",
                "redis://db.internal:6380/3",
            ),
            ("redis://:hunter2@127.0.0.1", "redis://127.0.0.1:6379"),
            ("valkey://:hunter2@[::1]:1", "valkey://[::1]:1"),
            (
                "redis+unix:///run/r.sock?pass=hunter2&db=2",
                "redis+unix:///run/r.sock",
            ),
            ("redis://h/?protocol=resp3&db=2", "redis://h:6379/"),
        ];
        for (url, shown) in secrets {
            let address = parse(url).expect(url);
            assert_eq!(address.shown(), shown);
            assert_eq!(format!("{address:?}"), shown);
        }
    }

    #[test]
    fn a_url_is_read_to_its_last_parameter() {
        let address = parse("valkey://me:p%40ss%2Cw@h/?db=3&protocol=2").expect("whole");
        assert_eq!(address.place(), Some(("h", 6379)));
        assert_eq!((address.database(), address.pushes()), (3, false));
        let credentials = given(&**address.credentials().expect("given"));
        assert_eq!(credentials, Credentials::new("me", "p@ss,w"));
        let socket = parse("unix:///run/my%20r.sock?user=me&password=a+b&db=0003").expect("whole");
        let path = ConnectionAddr::Unix("/run/my r.sock".into());
        assert_eq!(*socket.info.addr(), path);
        assert_eq!(socket.database(), 3);
        let credentials = given(&**socket.credentials().expect("given"));
        assert_eq!(credentials, Credentials::new("me", "a b"));
    }

    #[test]
    fn a_database_is_named_in_the_path_or_by_a_parameter() {
        for (url, database) in [
            ("redis://h", 0),
            ("redis://h/", 0),
            ("redis://h/4", 4),
            ("redis://h/4/", 4),
            ("redis://h?db=4", 4),
            ("redis://h/?db=4", 4),
            ("redis://h/4?db=4", 4),
            ("redis://h?&db=%34&", 4),
            ("redis+unix:///s?db=4", 4),
        ] {
            assert_eq!(parse(url).expect(url).database(), database, "{url}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_url_with_tls_and_without_the_feature_names_the_feature() {
        for url in ["rediss://:hunter2@host", "valkeys://:hunter2@host"] {
            let error = parse(url).map(drop).expect_err(url).to_string();
            assert!(error.contains("feature `tls`"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
