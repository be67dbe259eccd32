//! The query to the sentinels for the address of the primary.
//!
//! All sentinels are asked at the same time, for each new connection and once a second. `primary_choice.rs` chooses among the
//! replies.
//!
//! The nearest sentinel, whose reply arrives first, may have missed a fail-over. So a choice waits for a majority of the
//! sentinels, as long as others may still reply. The watch also counts replies that arrive after the choice, and chooses again
//! after each of them.
//!
//! `ROLE` is requested only on a new connection: a primary that was stopped still considers itself one when it resumes, whatever
//! the sentinels have done in the meantime. A primary that is cut off only from the sentinels would continue to give out locks, so
//! the sentinels are also asked after it was silent.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, timeout_at},
};

use crate::{
    backend::{
        Reply,
        redis::{
            topology::primary_choice::{Choices, SentinelReply, is_majority},
            transport::{
                CLOCK,
                address::Address,
                command::Arg::Text,
                connection_events::RepliesOnly,
                errors,
                handshake::Purpose,
                known_primary::{KnownPrimary, Need, PrimaryFinder},
                reconnecting::ReconnectingConnection,
            },
        },
        timing::Timing,
    },
    failure::Failure,
    runtime::{executor::spawn_detached, mutex::Mutex},
};

/// Once a majority has replied, the others have this long before a choice is made.
const GRACE: Duration = Duration::from_millis(100);

/// The questions to all sentinels. Dropping them loses only replies.
type Questions = JoinSet<Result<SentinelReply, Failure>>;

/// A primary that is known to sentinels under a name.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) sentinels: Vec<Address>,
    /// The settings for connections to the primary, at any host and port.
    pub(crate) primary: Address,
}

/// The sentinels that know a primary.
#[derive(Debug)]
pub(crate) struct Sentinels {
    connections: Vec<Arc<ReconnectingConnection>>,
    service: String,
    choices: Mutex<Choices>,
    doubted: Notify,
}

impl Sentinels {
    pub(crate) fn new(service: &Service, timing: Timing) -> Self {
        let connection = |address: &Address| {
            let (purpose, events) = (Purpose::OtherCommands, Arc::new(RepliesOnly));
            Arc::new(ReconnectingConnection::new(
                address.clone(),
                None,
                purpose,
                timing,
                events,
            ))
        };
        Self {
            connections: service.sentinels.iter().map(connection).collect(),
            service: service.name.clone(),
            choices: Mutex::default(),
            doubted: Notify::new(),
        }
    }

    /// Returns the replies that name a primary, at least one, and the questions that are still open.
    async fn query_all(&self) -> Result<(Vec<SentinelReply>, Questions), Failure> {
        let (mut asked, mut within) = (JoinSet::new(), Duration::ZERO);
        for connection in &self.connections {
            let (connection, service) = (connection.clone(), self.service.clone());
            within = connection.timing().connect_timeout;
            asked.spawn(async move { query(&connection, &service).await });
        }
        // The other half of the time-out is for connecting to the primary.
        let asked_in_all = self.connections.len();
        let majority_by = Instant::now() + within / 2;
        let (mut replies, mut failures) = (Vec::new(), Vec::new());
        let (mut settled, mut until) = (0, None::<Instant>);
        // The time-outs of a connection bound each reply.
        while let Some(reply) = match until {
            None => asked.join_next().await,
            Some(until) => timeout_at(until, asked.join_next()).await.unwrap_or(None),
        } {
            match reply {
                Ok(Ok(reply)) => {
                    settled += usize::from(!reply.is_failing_over);
                    if settled > 0 {
                        let others =
                            others_until(settled, asked_in_all, majority_by, Instant::now());
                        until = Some(until.map_or(others, |until| until.min(others)));
                    }
                    replies.push(reply);
                }
                Ok(Err(failure)) => failures.push(failure),
                Err(_) => {}
            }
        }
        if !replies.is_empty() {
            return Ok((replies, asked));
        }
        // A transient failure takes precedence over a permanent one, because that sentinel may know the primary later.
        let none = || Failure::no_reply("no sentinel answered");
        Err(failures
            .into_iter()
            .max_by_key(Failure::is_transient)
            .unwrap_or_else(none))
    }

    /// Makes the choice under one lock, so that of two callers, the later one knows the choice of the earlier one.
    fn choose(&self, replies: &[SentinelReply], need: Need) -> Result<KnownPrimary, Failure> {
        let mut choices = self.choices.lock();
        let before = choices.known().cloned();
        let chosen = choices.choose(replies, self.connections.len(), need, CLOCK.now());
        let is_replaced = before.is_some_and(|before| !choices.is_still(&before));
        drop(choices);
        if is_replaced {
            self.doubted.notify_one();
        }
        chosen.map_err(Failure::not_now)
    }

    /// Chooses again after each late reply: for the watch after all of them, for a connection until there is a choice. Ends
    /// with the time-outs of the questions.
    async fn receive_the_rest(
        &self,
        (mut replies, mut asked): (Vec<SentinelReply>, Questions),
        need: Need,
        mut chosen: Result<KnownPrimary, Failure>,
    ) -> Result<KnownPrimary, Failure> {
        while (need == Need::Watch || chosen.is_err())
            && let Some(late) = asked.join_next().await
        {
            if let Ok(Ok(reply)) = late {
                replies.push(reply);
                chosen = self.choose(&replies, need);
            }
        }
        chosen
    }
}

impl PrimaryFinder for Sentinels {
    fn primary(self: Arc<Self>, need: Need) -> Reply<KnownPrimary> {
        Box::pin(async move {
            let received = self.query_all().await?;
            let chosen = self.choose(&received.0, need);
            if need == Need::Connect {
                // Without a choice, as when most sentinels missed the last fail-over, the others are awaited.
                return self.receive_the_rest(received, need, chosen).await;
            }
            // In a separate task, because a sentinel that hangs must not delay the next question. The choice is recorded.
            let of_late_replies = chosen.clone();
            spawn_detached(async move {
                drop(self.receive_the_rest(received, need, of_late_replies).await);
            });
            chosen
        })
    }

    fn is_still(&self, primary: &KnownPrimary) -> bool {
        self.choices.lock().is_still(primary)
    }

    fn doubted(&self) -> &Notify {
        &self.doubted
    }
}

/// Returns until when further replies are awaited, once `settled` sentinels have replied that do not lead a fail-over.
fn others_until(settled: usize, sentinels: usize, majority_by: Instant, now: Instant) -> Instant {
    let soon = now + GRACE;
    if is_majority(settled, sentinels) {
        soon
    } else {
        majority_by.max(soon)
    }
}

async fn query(
    connection: &Arc<ReconnectingConnection>,
    service: &str,
) -> Result<SentinelReply, Failure> {
    let words = [Text("SENTINEL"), Text("MASTER"), Text(service)];
    let (within, address) = (connection.timing().connect_timeout, connection.address());
    let error = match connection.send(&[&words], within, None).await? {
        (_, Value::ServerError(error)) => error,
        (_, fields) => {
            let named = SentinelReply::read(&fields);
            return named.ok_or_else(|| errors::nonsense("SENTINEL MASTER"));
        }
    };
    let sentinel = address.shown();
    Err(if errors::details_of(&error).contains("No such master") {
        Failure::invalid(format!(
            "the sentinel {sentinel} knows no primary named `{service}`: the name follows the hosts in the url"
        ))
    } else if error.code() == "NOPERM" {
        Failure::invalid(format!(
            "this user of the sentinel {sentinel} may not ask where the primary is: grant it `+ping +sentinel|master`"
        ))
    } else if errors::is_unknown_command(&error) {
        Failure::invalid(format!(
            "{sentinel} is not a sentinel, because it does not know the command SENTINEL: name the sentinels (port 26379 by \
             default), or write a `redis://` url for a server without sentinels"
        ))
    } else {
        errors::refused(&error, address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_than_a_majority_are_not_trusted_while_others_may_still_reply() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let by = after(1000);
        // How many of how many have replied, after how many milliseconds, and until when others are awaited.
        for (settled, sentinels, now, until) in [
            (1, 1, 1, 101),
            (1, 2, 1, 1000),
            (2, 2, 1, 101),
            (1, 3, 1, 1000),
            (2, 3, 130, 230),
            (2, 5, 130, 1000),
            (3, 5, 130, 230),
            // The first reply arrived after the time in which a majority should have replied.
            (1, 3, 1200, 1300),
        ] {
            let others = others_until(settled, sentinels, by, after(now));
            assert_eq!(others, after(until), "{settled} of {sentinels} at {now}");
        }
    }
}
