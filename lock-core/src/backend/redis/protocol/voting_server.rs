//! One of several independent servers: the requests that a single server does not get, and their replies.

use std::{sync::Arc, time::Duration};

use redis::Value;

use crate::{
    backend::{
        Renew,
        in_flight::{ConnectionId, InFlight},
        owner::Owner,
        owner_token::random_name,
        redis::{
            protocol::{
                calls::set_if_free,
                redis_store::{RedisStore, Settings},
                replies::{SeenLock, answered, of_reply, of_value},
                scripts::{Call, MARK, PROPOSE},
                trial,
            },
            topology::{key_location::KeyLocation, servers::RedisServers},
            transport::{
                address::Named,
                command::{
                    Arg::{Joined, Number, Text, Written},
                    command, in_one_message, millis,
                },
                errors, reply,
            },
        },
    },
    error::LockError,
    failure::Failure,
    fencing::in_tokens,
};

/// The prefix of the full key in the key that stores the name of the last process that asked while another had the lock.
const ASKED: &str = "__lock_core__:asked:";

/// The key of the fencing counter: the largest fencing token that the server accepted. It is not a fencing clock, which only
/// grows with the server's own time.
const ACCEPTED: &str = "__lock_core__:fence";

/// The key of the server's marker.
const WATCHED: &str = "__lock_core__:watched";

/// The proposal of a client to every server at the same time.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    pub(crate) owner: Arc<Owner>,
    pub(crate) ttl: Duration,
    /// The number of fencing tokens that are wanted.
    pub(crate) count: u32,
    /// How long other processes can see that this one asks for the lock; zero if they cannot.
    pub(crate) mark: Duration,
}

/// A server's reply to a proposal. Its times are fencing tokens, by its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Vote {
    /// The server granted the lock to the requesting process, with this number.
    Accepted { clock: u64, wanted: bool },
    /// The number was not above the counter, or was far from the clock. `least` is the larger of the counter and the
    /// clock.
    Refused { least: u64, clock: u64 },
    /// Another process has the lock, for this long (`None`: without an expiry).
    Held { least: u64, left: Option<Duration> },
}

/// The identity of a server, as it reports it on a new connection.
#[derive(Clone, Debug)]
pub(crate) struct ServerIdentity {
    pub(crate) connection: ConnectionId,
    /// A random id that is different after each start.
    pub(crate) run_id: Arc<str>,
    /// The server's time, in tokens.
    pub(crate) clock: Option<u64>,
    /// The fencing counter.
    pub(crate) counter: Option<u64>,
}

impl RedisStore {
    /// Creates a store on one of several servers. It connects with the first request.
    pub(crate) fn one_of_several(named: &Named, settings: &Settings) -> Result<Self, LockError> {
        let store = Self::new(named, settings, None)?;
        let is_one = matches!(store.0.servers, RedisServers::One(_));
        if !is_one || store.place().server.connection.sentinels().is_some() {
            return Err(LockError::invalid(format!(
                "`{}` is not a single, independent server: list the url of each server",
                store.shown()
            )));
        }
        Ok(store)
    }

    /// Returns the location of all keys.
    fn place(&self) -> KeyLocation {
        self.0.servers.any()
    }

    /// Returns the server's address, without its secrets.
    pub(crate) fn shown(&self) -> &str {
        self.0.servers.address().shown()
    }

    /// Returns `true` if this is the connection on which the next request leaves.
    pub(crate) fn is_connected_by(&self, connection: ConnectionId) -> bool {
        let ready = self.place().server.connection.ready();
        ready.is_some_and(|ready| ready.id() == connection)
    }

    /// Connects if necessary, and verifies which server it is.
    pub(crate) async fn identify(&self, within: Duration) -> Result<ServerIdentity, Failure> {
        let place = self.place();
        let asked = in_one_message([
            command(&[&[Text("INFO"), Text("server")]]),
            command(&[&[Text("GET"), Text(ACCEPTED)]]),
        ]);
        let sent = place.server.connection.send_all(asked, within, None);
        let (connection, replies) = sent.await?;
        let [reply, counter] =
            <[Value; 2]>::try_from(replies).map_err(|_| errors::no_redis(self.shown()))?;
        let text = match reply {
            Value::ServerError(error) => {
                return Err(match error.code() {
                    "NOAUTH" => errors::wrong_credentials(self.0.servers.address()),
                    "NOPERM" => errors::denied(format!(
                        "this user of {} may not run INFO, which is needed to detect a restart: grant it `+info`",
                        self.shown()
                    )),
                    _ => answered(&error),
                });
            }
            reply => reply::info(&reply).ok_or_else(|| errors::no_redis(self.shown()))?,
        };
        let counter = reply::text(&counter).and_then(|counter| counter.parse().ok());
        read_greeting(connection, &text, counter).ok_or_else(|| errors::no_redis(self.shown()))
    }

    /// Writes to the server's marker how long the client has watched the server, if the marker still begins with `marker`.
    /// Returns the resulting marker, which is a new one if there was none for this run.
    pub(crate) async fn mark(
        &self,
        run_id: &str,
        marker: &str,
        watched: Duration,
        within: Duration,
    ) -> Result<String, Failure> {
        let (place, random) = (self.place(), random_name());
        let arguments = [
            Text(run_id),
            Text(&random),
            Text(marker),
            Number(millis(watched)),
        ];
        let call = Call::of(&[Text(WATCHED), Text(ACCEPTED)], &arguments);
        let connection = &place.server.connection;
        let written = place.run_on(connection, &MARK, call, within, None).await;
        let written = written.and_then(|(_, reply)| of_value(reply));
        let is_refused = |failure: &Failure| !failure.is_transient();
        if written.as_ref().is_err_and(is_refused) && !place.capabilities(within).await?.scripts {
            return Err(trial::no_scripts());
        }
        let text = reply::text(&written?).map(str::to_owned);
        text.ok_or_else(|| errors::nonsense("a marker"))
    }

    /// Returns the server's vote on tokens up to this number, or `None` if its marker does not begin with `marker`. The connection
    /// is recorded in `in_flight` before the first byte leaves.
    pub(crate) async fn propose(
        &self,
        proposal: &Proposal,
        number: u64,
        marker: &str,
        within: Duration,
        in_flight: &InFlight,
    ) -> Result<(ConnectionId, Option<Vote>), Failure> {
        let (place, owner) = (self.place(), &proposal.owner);
        let keys = [
            Text(&owner.full_key),
            Text(ACCEPTED),
            Joined(ASKED, &owner.full_key),
            Text(WATCHED),
        ];
        let arguments = [
            Written(&owner.token),
            Number(millis(proposal.ttl)),
            Number(number),
            Number(proposal.count.into()),
            Text(&place.names.channel),
            Number(millis(proposal.mark)),
            Text(marker),
        ];
        let call = Call::of(&keys, &arguments);
        let connection = &place.server.connection;
        let proposed = place.run_on(connection, &PROPOSE, call, within, Some(in_flight));
        let (connection, reply) = proposed.await?;
        let reply = of_reply(reply, connection, in_flight)?;
        let vote = match reply::numbers(&reply).as_deref() {
            Some([-2]) => None,
            _ => Some(read_vote(&reply).ok_or_else(|| errors::nonsense("a proposal"))?),
        };
        Ok((connection, vote))
    }

    /// Restores the key, unless another holder has it. Returns whether it was set.
    pub(crate) async fn restore_key(
        &self,
        request: &Renew,
        within: Duration,
        in_flight: &InFlight,
    ) -> Result<(ConnectionId, bool), Failure> {
        let words = set_if_free(&*request.owner, request.ttl);
        let connection = &self.place().server.connection;
        let (connection, reply) = connection.send(&[&words], within, Some(in_flight)).await?;
        match of_reply(reply, connection, in_flight)? {
            Value::Okay => Ok((connection, true)),
            Value::Nil => Ok((connection, false)),
            _ => Err(errors::nonsense("a SET")),
        }
    }

    /// Returns the owner token in the key, and how long it lasts.
    pub(crate) async fn see(&self, full_key: Arc<str>) -> Result<SeenLock, Failure> {
        self.place().look(&full_key).await
    }
}

fn read_greeting(
    connection: ConnectionId,
    info: &str,
    counter: Option<u64>,
) -> Option<ServerIdentity> {
    let field = |name| reply::info_field(info, name);
    let clock = field("server_time_usec").and_then(|time| time.parse().ok());
    Some(ServerIdentity {
        connection,
        run_id: field("run_id")?.into(),
        // Not every server with this protocol reports its time here, but each vote does.
        clock: clock.map(|micros| in_tokens(Duration::from_micros(micros))),
        counter,
    })
}

fn read_vote(reply: &Value) -> Option<Vote> {
    let number = |number: i64| u64::try_from(number).ok();
    match reply::numbers(reply)?[..] {
        [1, clock, wanted] => Some(Vote::Accepted {
            clock: number(clock)?,
            wanted: wanted != 0,
        }),
        [0, least, clock] => Some(Vote::Refused {
            least: number(least)?,
            clock: number(clock)?,
        }),
        [-1, least, left] => Some(Vote::Held {
            least: number(least)?,
            left: match left {
                -1 => None,
                left => Some(Duration::from_millis(number(left)?)),
            },
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fencing::PER_MILLI;

    #[test]
    fn a_reply_of_the_wrong_form_is_not_a_vote() {
        let array =
            |numbers: &[i64]| Value::Array(numbers.iter().copied().map(Value::Int).collect());
        for odd in [
            Value::Nil,
            Value::Int(1),
            array(&[]),
            array(&[1]),
            array(&[1, 5]),
            array(&[0, 5]),
            array(&[0, -5, 5]),
            array(&[-1, 5]),
            array(&[-1, 5, -3]),
            array(&[2, 5, 0]),
        ] {
            assert_eq!(read_vote(&odd), None, "{odd:?}");
        }
        let refused = Vote::Refused { least: 7, clock: 5 };
        assert_eq!(read_vote(&array(&[0, 7, 5])), Some(refused));
        let held = Vote::Held {
            least: 7,
            left: None,
        };
        assert_eq!(read_vote(&array(&[-1, 7, -1])), Some(held));
    }

    #[test]
    fn a_greeting_has_everything_that_the_vote_depends_on() {
        let text = "# Server\r\nrun_id:abc\r\nserver_time_usec:17000\r\nuptime_in_seconds:-3\r\n";
        let greeting = read_greeting(ConnectionId::new(1), text, None).expect("whole");
        assert_eq!(
            (&*greeting.run_id, greeting.clock),
            ("abc", Some(17 * PER_MILLI))
        );
        let text = text.replace("run_id", "other");
        assert!(read_greeting(ConnectionId::new(1), &text, None).is_none());
    }
}
