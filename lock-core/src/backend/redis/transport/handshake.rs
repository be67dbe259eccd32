//! The first commands on a connection: the credentials of this process, and what the server reports about itself.

use std::{env, path::Path, process, sync::Arc};

use redis::{RedisError, Value};

use crate::{
    backend::redis::transport::{
        address::Address, capabilities::Capabilities, command::Arg, connection::Connection, errors,
        known_primary::KnownPrimary, reply, traffic::NoReply,
    },
    credentials::Credentials,
    failure::Failure,
    options::RESERVED,
    runtime::jitter,
};

/// The script that is run to see whether scripts can be run.
const PROBE: &str = "return 1";

/// Counts the keys that the server of the first key has.
const COUNT: &str = "return redis.call('EXISTS', unpack(KEYS))";

/// How many keys are written to see whether they are on one server: two servers have all of them by a chance of 1 in 128.
const WRITTEN: usize = 8;

/// A connection, and what is known of it. The public fields are final once the handshake is completed. Dropping this closes the
/// connection.
#[derive(Debug)]
pub(crate) struct CurrentConnection {
    pub(crate) connection: Arc<Connection>,
    /// The address of the server that the connection leads to.
    pub(crate) address: Address,
    /// The sentinels' reply by which the server was found.
    pub(crate) found: Option<KnownPrimary>,
    /// Whether it speaks the third version of the protocol, in which push messages arrive.
    pub(crate) speaks_resp3: bool,
    /// The commands by which locks are kept; `None` if this connection keeps no locks.
    pub(crate) capabilities: Option<Capabilities>,
    /// Whether it is subscribed to the channel of its manager.
    pub(crate) is_subscribed: bool,
}

impl CurrentConnection {
    pub(super) fn new(connection: Arc<Connection>, address: Address) -> Self {
        Self {
            connection,
            address,
            found: None,
            speaks_resp3: false,
            capabilities: None,
            is_subscribed: false,
        }
    }

    pub(super) async fn ask(&self, words: &[Arg<'_>]) -> Result<Value, Failure> {
        let reply = self.ask_all(&[words]).await?.pop();
        reply.ok_or_else(|| errors::no_redis(&self.address))
    }

    /// The same for several commands in one message.
    pub(super) async fn ask_all(&self, commands: &[&[Arg<'_>]]) -> Result<Vec<Value>, Failure> {
        let replies = self.connection.ask_all(commands).await;
        replies.map_err(|none| errors::handshake(&none, &self.address))
    }

    pub(super) async fn expect_okay(&self, words: &[Arg<'_>]) -> Result<(), Failure> {
        match self.ask(words).await? {
            Value::Okay => Ok(()),
            Value::ServerError(error) => Err(errors::refused(&error, &self.address)),
            _ => Err(errors::no_redis(&self.address)),
        }
    }

    /// Asks for the third version of the protocol, and for what the server reports about itself.
    ///
    /// A server or proxy that refuses this, in whatever words, or that closes the connection, is spoken to in the second version. A wrong
    /// password then shows once more.
    pub(super) async fn hello(
        &mut self,
        purpose: Purpose,
        credentials: Option<&Credentials>,
    ) -> Result<Hello, Failure> {
        let mut words = vec![Arg::Text("HELLO"), Arg::Number(3)];
        if let Some(credentials) = credentials {
            let user = credentials.user.as_deref().unwrap_or("default");
            words.extend(["AUTH", user, &credentials.password].map(Arg::Text));
        }
        match self.connection.ask_all(&[&words]).await {
            // Where a server has spoken before, the connection has broken for another reason.
            Err(NoReply::Broken(_)) if !self.address.has_spoken() => return Ok(Hello::Closed),
            Err(none) => return Err(errors::handshake(&none, &self.address)),
            Ok(replies) => match &replies[..] {
                [Value::ServerError(error)] => match errors::refused(error, &self.address) {
                    failure @ Failure::NotNow(_) => return Err(failure),
                    _ => return Ok(Hello::Replied),
                },
                [reply @ (Value::Map(_) | Value::Array(_))] => {
                    self.note_greeting(reply, purpose)?;
                }
                _ => return Err(errors::no_redis(&self.address)),
            },
        }
        self.address.note_spoke();
        Ok(Hello::Replied)
    }

    /// Asks what the server reports about itself, on a connection that speaks the third version of the protocol.
    pub(super) async fn greet(&mut self, purpose: Purpose) -> Result<(), Failure> {
        self.address.note_spoke();
        let reply = self.ask(&[Arg::Text("HELLO")]).await?;
        self.note_greeting(&reply, purpose)?;
        self.set_name().await
    }

    fn note_greeting(&mut self, reply: &Value, purpose: Purpose) -> Result<(), Failure> {
        let mode = reply::field(reply, "mode").and_then(reply::bytes);
        // A node of a cluster has only some of the keys, and companion keys may be on different nodes.
        if purpose == Purpose::Locks && mode == Some(b"cluster") {
            return Err(errors::of_a_cluster(&self.address));
        }
        self.speaks_resp3 = true;
        Ok(())
    }

    /// Names the connection, and selects the database.
    pub(super) async fn set_up(&self) -> Result<(), Failure> {
        if self.speaks_resp3 {
            self.set_name().await?;
        }
        if self.address.database() != 0 {
            let database = Arg::Number(self.address.database().unsigned_abs());
            let select = [Arg::Text("SELECT"), database];
            self.expect_okay(&select).await?;
        }
        Ok(())
    }

    /// Any reply will do: locks work without the name of the connection, which a user may lack the right to set.
    async fn set_name(&self) -> Result<(), Failure> {
        let name = connection_name(self.address.label());
        let set_name = ["CLIENT", "SETNAME", &name].map(Arg::Text);
        self.ask(&set_name).await.map(drop)
    }

    /// Asks whether scripts can be run here, by their text and by their hash: some providers take away one of the two commands. Each
    /// connection asks once, since the next one may lead to another server.
    ///
    /// The calls name a key, since some proxies refuse a script without one.
    ///
    /// The same holds for streams, which some proxies forward in scripts only. Without `asks_all` they are not asked: the proxy closes
    /// connections at commands that it does not know.
    pub(super) async fn ask_capabilities(&self, asks_all: bool) -> Result<Capabilities, Failure> {
        let hash = sha1_smol::Sha1::from(PROBE).digest().to_string();
        let [by_text, by_hash] = [("EVAL", PROBE), ("EVALSHA", &*hash)].map(|(command, script)| {
            let key = Arg::Joined(RESERVED, "check");
            [Arg::Text(command), Arg::Text(script), Arg::Number(1), key]
        });
        // Makes no stream.
        let key = Arg::Joined(RESERVED, "check");
        let [xadd, condition, most, id] = ["XADD", "NOMKSTREAM", "MAXLEN", "*"].map(Arg::Text);
        let none = Arg::Text("");
        let add = [xadd, key, condition, most, Arg::Number(0), id, none, none];
        let all: [&[_]; 3] = [&by_text, &by_hash, &add];
        let asked = if asks_all { &all } else { &all[..2] };
        let mut replies = self.ask_all(asked).await?;
        let added = (replies.len() > 2).then(|| replies.pop()).flatten();
        let streams = match added {
            Some(Value::ServerError(error)) => !errors::is_refused_by_proxy(&error),
            reply => reply.is_some(),
        };
        let mut refusals = replies.iter().filter_map(|reply| match reply {
            Value::ServerError(error) => Some(error),
            // No known server sends another reply. The first lock then shows whether scripts work.
            _ => None,
        });
        let scripts = !refusals.clone().any(errors::is_unavailable_command);
        if scripts
            && let Some(error) = refusals.find(|error| !errors::is_for_its_key_or_script(error))
        {
            return Err(errors::refused(error, &self.address));
        }
        if !scripts && !streams {
            return Err(errors::no_streams(&self.address));
        }
        Ok(Capabilities {
            scripts,
            forwards_all: streams,
        })
    }

    /// Whether a script finds keys that were written one by one. A proxy may send each command to a server of its first key, and gives no
    /// error then. If this cannot be tried, there is one server.
    pub(super) async fn is_one_server(&self) -> Result<bool, Failure> {
        let front = format!("{RESERVED}check:{:x}:", jitter::number());
        let names: Vec<String> = (0..WRITTEN).map(|number| number.to_string()).collect();
        let keys = || names.iter().map(|name| Arg::Joined(&front, name));
        let [set, px, eval, count, del] = ["SET", "PX", "EVAL", COUNT, "DEL"].map(Arg::Text);
        let write = |key| vec![set, key, Arg::Text(""), px, Arg::Number(1000)];
        let mut commands: Vec<Vec<Arg<'_>>> = keys().map(write).collect();
        let many = Arg::Number(WRITTEN as u64);
        commands.push([eval, count, many].into_iter().chain(keys()).collect());
        commands.push([del].into_iter().chain(keys()).collect());
        let commands: Vec<&[Arg<'_>]> = commands.iter().map(Vec::as_slice).collect();
        let replies = self.ask_all(&commands).await?;
        let are_written = replies[..WRITTEN.min(replies.len())]
            .iter()
            .all(|reply| *reply == Value::Okay);
        Ok(match replies.get(WRITTEN) {
            Some(Value::Int(found)) if are_written => i64::try_from(WRITTEN) == Ok(*found),
            _ => true,
        })
    }

    /// Sentinels may be behind: the server that they name may have been demoted, or not yet promoted.
    pub(super) async fn expect_a_primary(&self) -> Result<(), Failure> {
        match self.ask(&[Arg::Text("ROLE")]).await? {
            Value::Array(words) if words.first().and_then(reply::bytes) != Some(b"master") => {
                Err(Failure::not_now(format!(
                    "{} is a replica: the sentinels do not know the new primary yet",
                    self.address
                )))
            }
            // If ROLE is forbidden, the first command that writes reports READONLY.
            _ => Ok(()),
        }
    }
}

impl Drop for CurrentConnection {
    fn drop(&mut self) {
        self.connection.traffic.retire();
    }
}

/// How a server took the greeting of the third version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hello {
    /// There is a greeting, unless the server refused.
    Replied,
    /// It closed the connection.
    Closed,
}

/// What the connections to a server are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Locks of a server that has all keys. Push messages arrive here, too.
    Locks,
    /// Locks, with push messages arriving on another connection.
    LocksOnly,
    /// Locks, for the tasks of one runtime.
    Requests,
    /// Push messages, and nothing else.
    Pushes,
    /// Other commands.
    OtherCommands,
}

/// Whether the server, or a proxy before it, does not speak the third version of the protocol.
pub(super) fn knows_no_resp3(error: &RedisError) -> bool {
    let details = error.detail().unwrap_or_default();
    error.kind() == redis::ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || details.contains("unknown command")
        || details.contains("protocol version")
}

/// The name that `CLIENT LIST` shows for a connection: the program, and its label or process id.
fn connection_name(label: Option<&str>) -> String {
    // In a simulation each run must send the same bytes.
    #[cfg(feature = "simulation")]
    if let Some(label) = crate::runtime::simulation::ask(|world| world.label()) {
        return format!("lock-core:{label}");
    }
    let program = env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_name);
    let program = program.unwrap_or_default().to_string_lossy();
    // The server accepts no spaces and no special characters in a name.
    let shown = program.chars().filter(char::is_ascii_graphic).take(40);
    let shown: String = shown.collect();
    let id = process::id().to_string();
    format!("lock-core:{shown}:{}", label.unwrap_or(&id))
}
