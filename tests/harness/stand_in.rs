//! Stand-ins for servers and proxies that cannot be installed here: a real server, with an endpoint in front of it that refuses what the
//! other program refuses.
//!
//! One task serves each connection, and reads the next request after the reply to the previous one. So refusals and replies arrive in the
//! order of the requests.

use std::io;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    background::Background,
    resp::{self, Turn, frame_length, take_request},
    slot::slot_of,
};

/// The difference between an endpoint and Redis: the requests that it refuses, except for [`ActiveReplica`](Self::ActiveReplica).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quirk {
    /// Keys that a script uses without declaring them: Dragonfly, `ElastiCache` Serverless, Kvrocks with `lua-strict-key-accessing`.
    UndeclaredKeys,
    /// Requests with keys of different slots: several shards behind one endpoint.
    OtherSlots,
    /// The commands that Envoy does not pass on, and with a password, everything before it.
    Envoy {
        /// The password of its listener.
        password: Option<&'static str>,
    },
    /// The commands that earlier versions of Envoy do not pass on, in their words.
    OldEnvoy,
    /// The commands that redis-cluster-proxy does not pass on.
    ClusterProxy,
    /// The third version of the protocol, in words that no other server uses.
    Resp3,
    /// Subscriptions: the connection is closed.
    Subscriptions,
    /// Every other command on a connection that has subscribed, as before RESP3.
    CommandsAfterSubscribe,
    /// It refuses nothing, and reports itself as an active replica, as `KeyDB` does.
    ActiveReplica,
}

/// An endpoint on a port of its own that passes requests to a real server, except for those that it refuses.
#[derive(Debug)]
pub struct StandIn {
    port: u16,
    // Kept for its tasks, which end with it.
    _background: Background,
}

impl StandIn {
    /// Starts an endpoint for the server on this port of 127.0.0.1, which has no password.
    pub fn start(server_port: u16, quirk: Quirk) -> Self {
        let (background, port) = Background::serve("stand-in", move |client| async move {
            // An error means that one end closed the connection, which the other end notices.
            if let Ok(connection) = Connection::new(client, server_port, quirk).await {
                connection.serve().await.ok();
            }
        });
        Self {
            port,
            _background: background,
        }
    }

    /// Returns the url for a client without a password.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the url for a client with this password.
    pub fn url_with(&self, password: &str) -> String {
        format!("redis://:{password}@127.0.0.1:{}", self.port)
    }
}

/// The decision about a request.
enum Verdict {
    Pass,
    Answer(String),
    HangUp,
}

struct Connection {
    quirk: Quirk,
    client: TcpStream,
    server: TcpStream,
    asked: Vec<u8>,
    answered: Vec<u8>,
    /// The user of the real server whose rights are the keys that the next script declares.
    user: String,
    is_authenticated: bool,
    is_subscribed: bool,
}

impl Connection {
    async fn new(client: TcpStream, server_port: u16, quirk: Quirk) -> io::Result<Self> {
        let server = TcpStream::connect(("127.0.0.1", server_port)).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        Ok(Self {
            quirk,
            user: format!("stand-in-{}", client.peer_addr()?.port()),
            client,
            server,
            asked: Vec::new(),
            answered: Vec::new(),
            is_authenticated: false,
            is_subscribed: false,
        })
    }

    async fn serve(mut self) -> io::Result<()> {
        loop {
            while let Some(words) = take_request(&mut self.asked) {
                let name = String::from_utf8_lossy(&words[0]).to_uppercase();
                let reply = match self.judge(&name, &words) {
                    Verdict::HangUp => return Ok(()),
                    Verdict::Answer(line) => format!("{line}\r\n").into_bytes(),
                    Verdict::Pass => match (self.quirk, declared(&name, &words)) {
                        (Quirk::UndeclaredKeys, Some(keys)) => {
                            self.run_with_rights_to(keys, &words).await?
                        }
                        _ => self.exchange(&words).await?,
                    },
                };
                let reply = match (self.quirk, &*name) {
                    (Quirk::ActiveReplica, "INFO") => as_active_replica(&reply),
                    _ => reply,
                };
                self.client.write_all(&reply).await?;
            }
            let read = tokio::select! {
                read = self.client.read_buf(&mut self.asked) => read,
                read = self.server.read_buf(&mut self.answered) => read,
            };
            if read? == 0 {
                return Ok(());
            }
            while let Some(message) = self.next_frame() {
                self.client.write_all(&message).await?;
            }
        }
    }

    fn judge(&mut self, name: &str, words: &[Vec<u8>]) -> Verdict {
        let keys = declared(name, words).unwrap_or_default();
        let has_no_key = matches!(name, "EVAL" | "EVALSHA") && keys.is_empty();
        let slot = |key: &Vec<u8>| slot_of(&String::from_utf8_lossy(key));
        let is_of_one_slot = keys.windows(2).all(|two| slot(&two[0]) == slot(&two[1]));
        let answer = match self.quirk {
            Quirk::OtherSlots if !is_of_one_slot => {
                "-CROSSSLOT Keys in request don't hash to the same slot".to_owned()
            }
            Quirk::Envoy {
                password: Some(password),
            } if !self.is_authenticated => {
                self.is_authenticated =
                    name == "AUTH" && words[words.len() - 1] == password.as_bytes();
                match name {
                    "AUTH" if self.is_authenticated => "+OK",
                    "AUTH" => "-ERR invalid password",
                    _ => "-NOAUTH Authentication required.",
                }
                .to_owned()
            }
            Quirk::Envoy { .. } if is_not_passed(name) => {
                format!("-ERR unknown command '{name}', with args beginning with: ")
            }
            Quirk::Envoy { .. } if has_no_key => {
                format!("-ERR wrong number of arguments for '{name}' command")
            }
            Quirk::OldEnvoy if is_not_passed(name) => {
                format!("-unsupported command '{name}'")
            }
            Quirk::OldEnvoy if has_no_key => {
                format!("-wrong number of arguments for '{name}' command")
            }
            Quirk::ClusterProxy if matches!(name, "HELLO" | "CLIENT" | "SUBSCRIBE") => {
                format!("-ERR unsupported command `{}`", name.to_lowercase())
            }
            Quirk::ClusterProxy if !is_of_one_slot => {
                "-ERR Cross-slot queries are not supported for this command".to_owned()
            }
            Quirk::Resp3 if name == "HELLO" => "-ERR not offered in this edition".to_owned(),
            Quirk::Subscriptions if name == "SUBSCRIBE" => return Verdict::HangUp,
            Quirk::CommandsAfterSubscribe if self.is_subscribed && name != "PING" => {
                format!("-ERR Can't execute '{name}': only (P)SUBSCRIBE allowed in this context")
            }
            _ => {
                self.is_subscribed |= name == "SUBSCRIBE";
                return Verdict::Pass;
            }
        };
        Verdict::Answer(answer)
    }

    /// Runs a script as a user that has rights to these keys only. The server then refuses the keys that a stricter kind refuses, at the
    /// same point of the script.
    async fn run_with_rights_to(
        &mut self,
        keys: &[Vec<u8>],
        script: &[Vec<u8>],
    ) -> io::Result<Vec<u8>> {
        let user = self.user.clone();
        let rules = "on nopass allcommands allchannels resetkeys";
        let mut set_user = as_words(&format!("ACL SETUSER {user} {rules}"));
        set_user.extend(keys.iter().map(|key| [&b"~"[..], &literally(key)].concat()));
        for words in [set_user, as_words(&format!("AUTH {user} any"))] {
            assert_eq!(self.exchange(&words).await?, b"+OK\r\n");
        }
        let reply = self.exchange(script).await?;
        let back = as_words("AUTH default any");
        assert_eq!(self.exchange(&back).await?, b"+OK\r\n");
        let words = "can't access at least one of the keys";
        let is_refused = String::from_utf8_lossy(&reply).contains(words);
        let refusal = || b"-ERR script tried accessing undeclared key\r\n".into();
        Ok(if is_refused { refusal() } else { reply })
    }

    /// Sends a request, passes on the messages before its reply, and returns the reply.
    async fn exchange(&mut self, words: &[Vec<u8>]) -> io::Result<Vec<u8>> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            let length = format!("${}\r\n", word.len());
            request.extend([length.as_bytes(), word, b"\r\n"].concat());
        }
        self.server.write_all(&request).await?;
        loop {
            while let Some(frame) = self.next_frame() {
                if resp::turn(&frame) == Turn::Reply {
                    return Ok(frame);
                }
                self.client.write_all(&frame).await?;
            }
            if self.server.read_buf(&mut self.answered).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn next_frame(&mut self) -> Option<Vec<u8>> {
        let length = frame_length(&self.answered).expect("the Redis protocol")?;
        Some(self.answered.drain(..length).collect())
    }
}

/// Returns the keys that a script declares.
fn declared<'a>(name: &str, words: &'a [Vec<u8>]) -> Option<&'a [Vec<u8>]> {
    if !matches!(name, "EVAL" | "EVALSHA") {
        return None;
    }
    let count: usize = String::from_utf8_lossy(words.get(2)?).parse().ok()?;
    words.get(3..3 + count)
}

/// Returns whether a proxy that sends each request to the server of its key cannot send this command anywhere, or does not know it.
fn is_not_passed(name: &str) -> bool {
    let not_passed = "ACL CLIENT CLUSTER HELLO INFO ROLE SCAN SUBSCRIBE TIME WAIT XADD";
    not_passed.split(' ').any(|command| command == name)
}

fn as_words(words: &str) -> Vec<Vec<u8>> {
    words.split(' ').map(Into::into).collect()
}

/// Returns the pattern that only this key matches.
fn literally(key: &[u8]) -> Vec<u8> {
    key.iter().flat_map(|&byte| [b'\\', byte]).collect()
}

fn as_active_replica(reply: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(reply);
    let (_, info) = text.split_once("\r\n").expect("a text");
    let info = info.trim_start_matches("txt:").trim_end();
    let info = info.replace("role:master", "role:active-replica");
    format!("${}\r\n{info}\r\n", info.len()).into_bytes()
}
