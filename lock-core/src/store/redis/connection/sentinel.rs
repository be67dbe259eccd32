//! Asking sentinels where the primary is.
//!
//! All sentinels are asked at the same time, and the reply with the highest epoch counts. A sentinel that was cut off from the
//! others may still name the primary before the last fail-over. Sentinels that were set up anew have lower epochs. So a reply that
//! is older than an earlier one counts only if most sentinels replied.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use redis::Value;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout_at},
};

use crate::runtime::mutex::Mutex;
use crate::store::{
    Failure,
    redis::{
        address::Address,
        connection::{
            errors,
            handshake::Purpose,
            pub_sub::PubSubDispatch,
            reconnecting::ReconnectingConnection,
            wire::{command::Arg::Text, reply},
        },
    },
    timing::Timing,
};

/// Once one sentinel has replied, the others have this long.
const GRACE: Duration = Duration::from_millis(100);

/// A primary that is known to sentinels under a name.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) sentinels: Vec<Address>,
    /// The settings for connections to the primary, at whatever host and port it is.
    pub(crate) primary: Address,
}

/// The sentinels that know a primary.
#[derive(Debug)]
pub(crate) struct Sentinels {
    connections: Vec<Arc<ReconnectingConnection>>,
    service: String,
    /// The last reply that counted.
    known: Mutex<Option<KnownPrimary>>,
    turn: AtomicUsize,
}

pub(crate) use super::handshake::KnownPrimary;

impl Sentinels {
    pub(crate) fn new(service: &Service, timing: Timing, dispatch: &PubSubDispatch) -> Self {
        let connection = |address: &Address| {
            let (purpose, dispatch) = (Purpose::OtherCommands, dispatch.of_nobody());
            Arc::new(ReconnectingConnection::new(
                address.clone(),
                None,
                purpose,
                timing,
                dispatch,
            ))
        };
        Self {
            connections: service.sentinels.iter().map(connection).collect(),
            service: service.name.clone(),
            known: Mutex::default(),
            turn: AtomicUsize::new(0),
        }
    }

    /// Where the primary is now, as far as the sentinels know.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses only the replies.
    pub(crate) async fn primary(&self) -> Result<KnownPrimary, Failure> {
        let (best, answers) = self.find().await?;
        let mut known = self.known.lock();
        if answers * 2 <= self.connections.len()
            && let Some(known) = &*known
            && known.epoch > best.epoch
        {
            return Err(Failure::not_now(
                "the sentinels that answer do not know of the last fail-over yet",
            ));
        }
        Ok(known.insert(best).clone())
    }

    /// The best reply, and how many sentinels named a primary.
    async fn find(&self) -> Result<(KnownPrimary, usize), Failure> {
        let mut asked = JoinSet::new();
        for connection in &self.connections {
            let (connection, service) = (connection.clone(), self.service.clone());
            asked.spawn(async move { ask(&connection, &service).await });
        }
        let (mut answers, mut until) = (Vec::new(), None);
        // Ends with the last reply, or `GRACE` after the first one that names a primary. The time-outs of a connection bound each
        // reply.
        while let Some(answer) = match until {
            None => asked.join_next().await,
            Some(until) => timeout_at(until, asked.join_next()).await.unwrap_or(None),
        } {
            if let Ok(Ok(_)) = answer {
                until.get_or_insert_with(|| Instant::now() + GRACE);
            }
            answers.extend(answer);
        }
        let known = answers.iter().flatten();
        if let Some(best) = known.clone().max_by_key(|known| known.epoch) {
            return Ok((best.clone(), known.count()));
        }
        // A transient failure takes precedence over a permanent one: that sentinel may know the primary later.
        let failures = answers.into_iter().filter_map(Result::err);
        let none = || Failure::no_answer("no sentinel answered");
        Err(failures
            .max_by_key(Failure::is_transient)
            .unwrap_or_else(none))
    }

    /// Asks one sentinel, with each call the next one. Returns the primary if the sentinel knows it.
    pub(crate) async fn hear_one(&self) -> Option<KnownPrimary> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.connections.len();
        let now = ask(&self.connections[turn], &self.service).await.ok()?;
        let mut known = self.known.lock();
        if known.as_ref().is_none_or(|known| known.epoch < now.epoch) {
            // Kept, since the other sentinels may not know the new primary yet when they are asked next.
            *known = Some(now.clone());
        }
        Some(now)
    }
}

async fn ask(
    connection: &Arc<ReconnectingConnection>,
    service: &str,
) -> Result<KnownPrimary, Failure> {
    let words = [Text("SENTINEL"), Text("MASTER"), Text(service)];
    let within = connection.timing().connect_timeout;
    match connection.send(&[&words], within, None).await? {
        (_, Value::ServerError(error)) if errors::details_of(&error).contains("No such master") => {
            Err(Failure::invalid(format!(
                "the sentinel {} knows no primary by the name `{service}`: it follows the hosts in the url",
                connection.address().shown()
            )))
        }
        (_, Value::ServerError(error)) if error.code() == "NOPERM" => {
            let user = connection.address().user().unwrap_or("default");
            Err(Failure::invalid(format!(
                "this user of the sentinel {} may not ask where the primary is: an administrator of the sentinels grants it \
                 by `ACL SETUSER {user} +ping +sentinel|master`",
                connection.address().shown()
            )))
        }
        (_, Value::ServerError(error)) => Err(errors::refused(&error, connection.address())),
        (_, fields) => {
            read(&fields).ok_or_else(|| errors::nonsense("the question for the primary"))
        }
    }
}

fn read(fields: &Value) -> Option<KnownPrimary> {
    let field = |wanted: &str| reply::text(reply::field(fields, wanted)?);
    Some(KnownPrimary {
        host: field("ip").filter(|host| !host.is_empty())?.to_owned(),
        port: field("port")?.parse().ok()?,
        epoch: field("config-epoch")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(words: &[&str]) -> Value {
        let bulk = |word: &&str| Value::BulkString(word.as_bytes().to_vec());
        Value::Array(words.iter().map(bulk).collect())
    }

    #[test]
    fn the_place_and_the_epoch_are_read_from_their_fields() {
        let fields = bulk(&["name", "m", "ip", "::1", "port", "7", "config-epoch", "3"]);
        let known = KnownPrimary {
            host: "::1".to_owned(),
            port: 7,
            epoch: 3,
        };
        assert_eq!(read(&fields), Some(known));
        for odd in [
            bulk(&[]),
            bulk(&["ip"]),
            bulk(&["ip", "", "port", "7", "config-epoch", "3"]),
            bulk(&["ip", "a", "port", "70000", "config-epoch", "3"]),
            bulk(&["ip", "a", "port", "7"]),
            Value::Array(vec![Value::Nil, Value::Int(1)]),
        ] {
            assert_eq!(read(&odd), None);
        }
    }

    #[test]
    fn only_a_later_word_replaces_a_primary() {
        let known = |port, epoch| KnownPrimary {
            host: "a".to_owned(),
            port,
            epoch,
        };
        assert!(known(2, 2).replaces(&known(1, 1)));
        assert!(!known(2, 1).replaces(&known(1, 1)));
        assert!(!known(1, 2).replaces(&known(1, 1)));
        assert!(!known(1, 1).replaces(&known(2, 2)));
    }
}
