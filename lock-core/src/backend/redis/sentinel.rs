//! Asking sentinels where the primary is.
//!
//! All are asked at the same time, and the word with the highest epoch counts: one that was cut off from the others may
//! still name the primary before the last fail-over.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    backend::{
        Failure,
        redis::{
            address::Address,
            failure,
            link::{Link, Purpose},
            mailbox::Mailbox,
            resp::{Value, Word::Text},
            topology::Service,
        },
    },
    engine::Timing,
};

/// Once one sentinel has answered, the others have so long.
const GRACE: Duration = Duration::from_millis(100);

/// How often one of them, each in its turn, is asked whether the primary has changed.
const WATCH: Duration = Duration::from_secs(1);

/// The sentinels that know a primary.
pub(super) struct Sentinels {
    links: Vec<Arc<Link>>,
    service: String,
    /// Where the last connection went.
    known: Mutex<Option<Known>>,
    turn: AtomicUsize,
}

/// A sentinel's word.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    host: String,
    port: u16,
    /// Grows with each fail-over.
    epoch: u64,
}

impl Sentinels {
    pub(super) fn new(service: &Service, timing: Timing, mailbox: &Mailbox) -> Self {
        let link = |address: &Address| {
            let (purpose, mailbox) = (Purpose::Questions, mailbox.of_nobody());
            Arc::new(Link::new(address.clone(), None, purpose, timing, mailbox))
        };
        Self {
            links: service.sentinels.iter().map(link).collect(),
            service: service.name.clone(),
            known: Mutex::default(),
            turn: AtomicUsize::new(0),
        }
    }

    /// Where the primary is now, as far as they know, with `template`'s way of talking to it.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost but the answers.
    pub(super) async fn primary(&self, template: &Address) -> Result<Address, Failure> {
        let known = self.find().await?;
        let address = template.at(&known.host, known.port);
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
        Ok(address)
    }

    async fn find(&self) -> Result<Known, Failure> {
        let mut asked = JoinSet::new();
        for link in &self.links {
            let (link, service) = (link.clone(), self.service.clone());
            asked.spawn(async move { ask(&link, &service).await });
        }
        let (mut best, mut failure): (Option<Known>, Option<Failure>) = (None, None);
        let mut until = None;
        // Ends with the last answer, each of which is bounded by the time-outs of its link.
        loop {
            let answer = match until {
                None => asked.join_next().await,
                Some(until) => timeout_at(until, asked.join_next()).await.unwrap_or(None),
            };
            match answer {
                None => break,
                Some(Ok(Ok(known))) => {
                    until.get_or_insert_with(|| Instant::now() + GRACE);
                    if best.as_ref().is_none_or(|best| best.epoch < known.epoch) {
                        best = Some(known);
                    }
                }
                Some(Ok(Err(other))) => {
                    // What may pass counts more than what does not: another one may know better.
                    let is_better = failure.as_ref().is_none_or(|known| !known.is_transient());
                    if is_better {
                        failure = Some(other);
                    }
                }
                Some(Err(_)) => {}
            }
        }
        let none = || Failure::no_answer("no sentinel answered");
        best.ok_or_else(|| failure.unwrap_or_else(none))
    }

    /// Asks one of them whether the primary has changed.
    async fn has_changed(&self) -> bool {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.links.len();
        let Ok(now) = ask(&self.links[turn], &self.service).await else {
            return false;
        };
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().is_some_and(|known| now.replaces(known))
    }
}

impl Known {
    fn replaces(&self, earlier: &Self) -> bool {
        self.epoch > earlier.epoch && (&self.host, self.port) != (&earlier.host, earlier.port)
    }
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinels")
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}

/// Has the link leave a primary that was replaced. Sentinels cut the connections of one that they can reach; one that only
/// we can still reach would go on giving out locks that nobody else respects.
pub(super) async fn watch(link: Weak<Link>) {
    // Until the manager ends.
    loop {
        sleep(WATCH).await;
        let Some(link) = link.upgrade() else { return };
        let Some(sentinels) = link.sentinels() else {
            return;
        };
        if link.is_up() && sentinels.has_changed().await {
            tracing::warn!(
                server = link.address().shown(),
                "the sentinels name another primary: connecting to it"
            );
            link.forget_current();
        }
    }
}

async fn ask(link: &Arc<Link>, service: &str) -> Result<Known, Failure> {
    let words = [Text("SENTINEL"), Text("MASTER"), Text(service)];
    let within = link.timing().connect_timeout;
    match link.send(&[&words], within, None).await? {
        (_, Value::ServerError(error)) if error.details().contains("No such master") => {
            Err(Failure::Invalid(
                format!(
                    "the sentinel {} knows no primary by the name `{service}`: it stands behind the hosts in the url",
                    link.address().shown()
                )
                .into(),
            ))
        }
        (_, Value::ServerError(error)) => Err(failure::refused(&error, link.address())),
        (_, Value::Array(fields)) => {
            read(&fields).ok_or_else(|| failure::nonsense("the question for the primary"))
        }
        _ => Err(failure::nonsense("the question for the primary")),
    }
}

/// Reads fields and their values in turn.
fn read(fields: &[Value]) -> Option<Known> {
    let field = |wanted: &str| {
        fields.chunks(2).find_map(|pair| match pair {
            [Value::BulkString(name), Value::BulkString(value)] if **name == *wanted.as_bytes() => {
                std::str::from_utf8(value).ok()
            }
            _ => None,
        })
    };
    Some(Known {
        host: field("ip").filter(|host| !host.is_empty())?.to_owned(),
        port: field("port")?.parse().ok()?,
        epoch: field("config-epoch")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(words: &[&str]) -> Vec<Value> {
        let bulk = |word: &&str| Value::BulkString(word.as_bytes().to_vec());
        words.iter().map(bulk).collect()
    }

    #[test]
    fn the_place_and_the_epoch_are_read_from_their_fields() {
        let fields = bulk(&["name", "m", "ip", "::1", "port", "7", "config-epoch", "3"]);
        let known = Known {
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
            vec![Value::Nil, Value::Int(1)],
        ] {
            assert_eq!(read(&odd), None);
        }
    }

    #[test]
    fn only_a_later_word_replaces_a_primary() {
        let known = |port, epoch| Known {
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
