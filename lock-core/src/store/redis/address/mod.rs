//! From a url to the data that a connection needs, and to a form of the url that may be shown.

use std::{collections::HashSet, sync::Arc};

use redis::ConnectionAddr;

use crate::{
    credentials::{Credentials, CredentialsProvider},
    error::LockError,
    runtime::mutex::Mutex,
    store::redis::address::{
        client::OwnClient,
        scheme::Kind,
        transport::{Security, Transport},
        url::{ServerUrl, in_brackets},
    },
};

pub(crate) mod client;
mod endpoint;
mod parts;
pub(crate) mod scheme;
pub(crate) mod transport;
pub(crate) mod url;

/// A server that a user named: by a url, or by a client.
#[derive(Clone)]
pub(crate) enum Named {
    Url(String),
    Client(OwnClient),
}

/// A server's address. What is shown of it has no user, password or query.
#[derive(Clone)]
pub(crate) struct Address {
    endpoint: Endpoint,
    pub(crate) transport: Transport,
    credentials: Option<Arc<dyn CredentialsProvider>>,
    database: u32,
    /// Whether the server may send messages on the connection of the commands (RESP3). It may, unless the url asks for RESP2.
    pub(crate) pushes: bool,
    shown: String,
    /// Where servers have spoken the Redis protocol. All addresses that were made of one share it.
    spoke: Arc<Mutex<HashSet<Endpoint>>>,
}

pub(crate) use endpoint::Endpoint;
pub(crate) use scheme::DEFAULT_PORT;

impl Address {
    /// The address of a single server, or of a socket.
    pub(crate) fn of(url: &ServerUrl<'_>, security: &Security) -> Result<Self, LockError> {
        let segments = url.segments();
        let (transport, in_path) = match (url.kind, &segments[..]) {
            // The bytes never leave the machine.
            (Kind::Socket, _) => (Transport::Plain, None),
            (_, [_, _, ..]) => {
                return Err(url.refused(
                    "its path has more than one part: the number of the database stands alone, as in `redis://host/0`",
                ));
            }
            (_, segments) => {
                let transport = security.transport(url.base(), &url.shown())?;
                (transport, segments.first().copied())
            }
        };
        Self::with(url, transport, in_path)
    }

    /// The address of the first server of a url, with the number of the database in its path.
    pub(crate) fn with(
        url: &ServerUrl<'_>,
        transport: Transport,
        in_path: Option<&str>,
    ) -> Result<Self, LockError> {
        let endpoint = match url.hosts.first() {
            Some((host, port)) => Endpoint::Tcp {
                host: host.clone(),
                port: port.unwrap_or(DEFAULT_PORT),
            },
            None => Endpoint::Unix(url.decoded_path().into()),
        };
        Ok(Self {
            endpoint,
            transport,
            credentials: url.credentials()?.map(|given| Arc::new(given) as _),
            database: url.database(in_path)?,
            pushes: url.pushes()?,
            shown: url.shown(),
            spoke: Arc::default(),
        })
    }

    /// The address to which a user's own client connects.
    pub(crate) fn of_client(client: OwnClient) -> Result<Self, LockError> {
        let info = client.info();
        let tcp = |scheme: &str, host: &String, port: u16| {
            let shown = format!("{scheme}://{}:{port}", in_brackets(host));
            let host = host.clone();
            (Endpoint::Tcp { host, port }, shown)
        };
        let (endpoint, shown) = match info.addr() {
            ConnectionAddr::Tcp(host, port) => tcp("redis", host, *port),
            ConnectionAddr::TcpTls { host, port, .. } => tcp("rediss", host, *port),
            ConnectionAddr::Unix(path) => {
                let shown = format!("redis+unix://{}", path.display());
                (Endpoint::Unix(path.clone()), shown)
            }
            _ => {
                return Err(LockError::invalid(
                    "this version of lock-core does not know the address of this `redis::Client`: use a url",
                ));
            }
        };
        let settings = info.redis_settings();
        let credentials = settings.password().map(|password| {
            let user = settings.username().unwrap_or_default();
            Arc::new(Credentials::new(user, password)) as _
        });
        let number = settings.db();
        let database = u32::try_from(number).map_err(|_| {
            LockError::invalid(format!(
                "the client's database {number} is not a number that a server has"
            ))
        })?;
        Ok(Self {
            endpoint,
            credentials,
            database,
            pushes: true,
            shown,
            spoke: Arc::default(),
            transport: Transport::Client(client),
        })
    }

    /// The same settings for another server.
    pub(crate) fn at(&self, host: &str, port: u16) -> Self {
        // The scheme without the part after its `+`.
        let scheme = self.shown.split(['+', ':']).next().unwrap_or_default();
        Self {
            endpoint: Endpoint::Tcp {
                host: host.to_owned(),
                port,
            },
            shown: format!("{scheme}://{}:{port}", in_brackets(host)),
            ..self.clone()
        }
    }

    pub(crate) fn set_credentials(&mut self, credentials: Option<Arc<dyn CredentialsProvider>>) {
        self.credentials = credentials;
    }

    pub(crate) fn set_database(&mut self, database: u32) {
        self.database = database;
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn credentials(&self) -> Option<&Arc<dyn CredentialsProvider>> {
        self.credentials.as_ref()
    }

    /// The name of the user, unless it is the default one.
    pub(crate) fn user(&self) -> Option<&str> {
        self.credentials.as_ref()?.user()
    }

    pub(crate) fn database(&self) -> u32 {
        self.database
    }

    /// Notes that a server here spoke the Redis protocol.
    pub(crate) fn note_spoke(&self) {
        self.spoke.lock().insert(self.endpoint.clone());
    }

    /// Whether a server here ever spoke the Redis protocol.
    pub(crate) fn has_spoken(&self) -> bool {
        self.spoke.lock().contains(&self.endpoint)
    }

    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::{Credentials, given};

    fn parse(url: &str) -> Result<Address, LockError> {
        Address::of(&ServerUrl::parse(url)?, &Security::default())
    }

    #[test]
    fn what_is_shown_of_a_url_has_no_secret() {
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
        let endpoint = Endpoint::Tcp {
            host: "h".to_owned(),
            port: 6379,
        };
        assert_eq!(*address.endpoint(), endpoint);
        assert_eq!((address.database(), address.pushes), (3, false));
        let credentials = given(&**address.credentials().expect("given"));
        assert_eq!(credentials, Credentials::new("me", "p@ss,w"));
        let socket = parse("unix:///run/my%20r.sock?user=me&password=a+b&db=0003").expect("whole");
        assert_eq!(*socket.endpoint(), Endpoint::Unix("/run/my r.sock".into()));
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
    fn a_url_that_asks_for_tls_is_told_which_feature_to_switch_on() {
        for url in ["rediss://:hunter2@host", "valkeys://:hunter2@host"] {
            let error = parse(url).map(drop).expect_err(url).to_string();
            assert!(error.contains("feature `tls`"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
