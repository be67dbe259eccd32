//! Hearing of grants in a cluster: each slot has a channel, at the node that has the slot.
//!
//! On a connection of their own, which nothing else depends on: a node ends a subscription by itself when its slot moves away,
//! and that cannot be told from the answer to a command that ends one. So none is ever ended by us; when most of
//! them are of no use any more, the connection is replaced.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    runtime::clock::Moment,
    store::{
        Failure,
        in_flight::ConnectionId,
        redis::{
            connection::{
                CLOCK,
                reconnecting::{Link, Purpose},
                resp::{Value, Word::Text},
            },
            errors,
            server::Making,
            topology::address::Address,
        },
    },
};

/// So many channels are heard on one connection before those are dropped that nobody needs.
const MANY: usize = 512;

/// Whoever waits shows it more often than this.
const UNUSED: Duration = Duration::from_secs(10);

/// What is heard from one node.
#[derive(Debug)]
pub(crate) struct Listener {
    link: Arc<Link>,
    heard: Arc<Heard>,
    /// Whether this node, or this user, cannot subscribe.
    deaf: AtomicBool,
}

/// The channels whose subscription is confirmed.
#[derive(Debug, Default)]
pub(crate) struct Heard(Mutex<Channels>);

#[derive(Debug, Default)]
struct Channels {
    connection: Option<ConnectionId>,
    /// With when each was last of use.
    used: HashMap<String, Moment>,
    /// When the node last ended a subscription by itself.
    ended: Option<Moment>,
}

/// Whether grants will arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hears {
    Yes,
    /// Not now: the answer is not there yet, or the connection broke.
    NotYet,
    Never,
}

impl Listener {
    pub(crate) fn new(address: Address, making: &Making) -> Self {
        let heard = Arc::<Heard>::default();
        let mailbox = making.mailbox("".into()).with(heard.clone());
        let link = Link::new(address, None, Purpose::Grants, making.timing, mailbox);
        Self {
            link: Arc::new(link),
            heard,
            deaf: AtomicBool::new(false),
        }
    }

    /// Whether grants on this channel arrive now.
    pub(crate) fn hears(&self, channel: &str) -> Hears {
        if self.deaf.load(Ordering::Relaxed) {
            return Hears::Never;
        }
        let current = self.link.current_id();
        let mut heard = self.heard.lock();
        let is_current = current.is_some() && heard.connection == current;
        match heard.used.get_mut(channel) {
            Some(used) if is_current => {
                *used = CLOCK.now();
                Hears::Yes
            }
            _ => Hears::NotYet,
        }
    }

    /// Has grants on this channel arrive: confirmed when this returns, before anybody can be granted anything.
    ///
    /// Whether they do is no condition for a lock: only a redirection is a failure here.
    pub(crate) async fn listen(&self, channel: &str, within: Duration) -> Result<Hears, Failure> {
        match self.hears(channel) {
            Hears::NotYet => {}
            known => return Ok(known),
        }
        let sent = CLOCK.now();
        let words = [Text("SSUBSCRIBE"), Text(channel)];
        let answer = self.link.send(&[&words], within, None).await;
        match answer.and_then(|(connection, value)| Ok((connection, errors::of_value(value)?))) {
            Ok((connection, Value::Array(_))) => Ok(self.note(channel, connection, sent)),
            Ok(_) => Ok(self.never_mind("an answer of the wrong form")),
            Err(Failure::Refused(why)) => Ok(self.never_mind(&why.to_string())),
            // The slot is elsewhere, and so is the lock.
            Err(failure) if errors::redirect(&failure).is_some() => Err(failure),
            // Locks do not depend on it: whoever waits asks again and again until then.
            Err(failure) => {
                tracing::debug!(
                    server = self.link.address().shown(),
                    ?failure,
                    "no grants are heard of yet"
                );
                Ok(Hears::NotYet)
            }
        }
    }

    fn note(&self, channel: &str, connection: ConnectionId, sent: Moment) -> Hears {
        let now = CLOCK.now();
        let mut heard = self.heard.lock();
        if heard.connection != Some(connection) {
            heard.used.clear();
            heard.connection = Some(connection);
        }
        // It may have been this one that ended.
        if heard.ended.is_some_and(|ended| ended >= sent) {
            return Hears::NotYet;
        }
        heard.used.insert(channel.to_owned(), now);
        let is_used = |used: &&Moment| now.since(**used) < UNUSED;
        let wasteful =
            heard.used.len() > MANY && heard.used.values().filter(is_used).count() < MANY / 2;
        drop(heard);
        if wasteful {
            // Everybody who waits asks again, and is heard on a new one.
            self.link.forget(connection);
            return Hears::NotYet;
        }
        Hears::Yes
    }

    fn never_mind(&self, why: &str) -> Hears {
        if !self.deaf.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                server = self.link.address().shown(),
                why,
                "this server, or this user, cannot be told when a lock is theirs: waiters ask again and again"
            );
        }
        Hears::Never
    }
}

impl Heard {
    /// The node ended a subscription.
    pub(crate) fn end(&self, channel: &[u8]) {
        let mut heard = self.lock();
        heard.ended = Some(CLOCK.now());
        heard.used.retain(|known, _| known.as_bytes() != channel);
    }

    fn lock(&self) -> MutexGuard<'_, Channels> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
