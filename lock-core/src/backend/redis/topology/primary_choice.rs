//! The choice among the primaries that sentinels name.
//!
//! A sentinel that was cut off from the others, or has not received their messages yet, names the primary before the last
//! fail-over. So does the sentinel that leads a fail-over: until all replicas follow the new primary, it names the old address
//! with the new epoch, as its flags show. The choice at one epoch depends only on the replies, so all processes that get the
//! same replies use the same primary.

use std::time::Duration;

use redis::Value;

use crate::{
    backend::redis::transport::{
        known_primary::{KnownPrimary, Need},
        reply,
    },
    moment::Moment,
};

/// For this long after a switch, no reply can cause a switch back. Sentinels learn of a fail-over from each other
/// within a few seconds.
const SETTLING: Duration = Duration::from_secs(60);

/// A sentinel's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentinelReply {
    primary: KnownPrimary,
    /// `true` if the sentinel leads a fail-over. Its address may then be older than its epoch.
    pub(crate) is_failing_over: bool,
}

/// The last choice, and the one that it replaced.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    known: Option<KnownPrimary>,
    /// The primary before the last switch, and when that was.
    left: Option<(KnownPrimary, Moment)>,
}

impl SentinelReply {
    /// Reads the reply to `SENTINEL MASTER`.
    pub(crate) fn read(fields: &Value) -> Option<Self> {
        let field = |wanted: &str| reply::text(reply::field(fields, wanted)?);
        let flags = field("flags").unwrap_or_default();
        Some(Self {
            primary: KnownPrimary {
                host: field("ip").filter(|host| !host.is_empty())?.to_owned(),
                port: field("port")?.parse().ok()?,
                epoch: field("config-epoch")?.parse().ok()?,
            },
            is_failing_over: flags.split(',').any(|flag| flag == "failover_in_progress"),
        })
    }
}

impl Choices {
    /// Chooses among the replies of some of these `sentinels`: the highest epoch, then the address that most name, then the order of
    /// the addresses.
    ///
    /// # Errors
    ///
    /// The reason, if no reply counts.
    pub(crate) fn choose(
        &mut self,
        replies: &[SentinelReply],
        sentinels: usize,
        need: Need,
        now: Moment,
    ) -> Result<KnownPrimary, &'static str> {
        let settled = replies.iter().filter(|reply| !reply.is_failing_over);
        let settled: Vec<_> = settled.map(|reply| &reply.primary).collect();
        if settled.is_empty() {
            return Err("the sentinels that answer are replacing the primary");
        }
        let are_most = is_majority(settled.len(), sentinels);
        let counting = settled
            .iter()
            .filter(|named| self.counts(named, are_most, need, now));
        let votes = |named: &KnownPrimary| settled.iter().filter(|other| **other == named).count();
        let best = counting.max_by_key(|named| (named.epoch, votes(named), named.address()));
        let Some(best) = best.copied().cloned() else {
            return Err("the sentinels that answer do not know about the last fail-over yet");
        };
        if let Some(known) = self.known.replace(best.clone())
            && !known.is_same_server(&best)
        {
            self.left = Some((known, now));
        }
        Ok(best)
    }

    pub(crate) fn known(&self) -> Option<&KnownPrimary> {
        self.known.as_ref()
    }

    /// Returns `true` if the latest choice is still this server.
    pub(crate) fn is_still(&self, primary: &KnownPrimary) -> bool {
        let known = self.known.as_ref();
        known.is_some_and(|known| known.is_same_server(primary))
    }

    /// Returns `true` if a reply counts, considering what is known. Sentinels that were set up anew have lower epochs, so a
    /// reply older than the last choice counts if most sentinels replied, and if the last switch was long ago.
    fn counts(&self, named: &KnownPrimary, are_most: bool, need: Need, now: Moment) -> bool {
        let Some(known) = &self.known else {
            return true;
        };
        let (left, is_settling) = match &self.left {
            Some((left, at)) => (Some(left), now.since(*at) < SETTLING),
            None => (None, false),
        };
        let is_back = left.is_some_and(|left| left.is_same_server(named));
        let is_behind = named.epoch < known.epoch || named.epoch == known.epoch && is_back;
        // If the connection already leads there, the lower epoch is recorded, so that the next fail-over has a higher one than
        // that.
        let may_return = need == Need::Connect || named.is_same_server(known);
        !is_behind || are_most && !is_settling && may_return
    }
}

pub(crate) const fn is_majority(replies: usize, sentinels: usize) -> bool {
    replies * 2 > sentinels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn primary(host: &str, epoch: u64) -> KnownPrimary {
        let (host, port) = (host.to_owned(), 1);
        KnownPrimary { host, port, epoch }
    }

    /// Creates a reply from `a2`, which is the host `a` with the epoch 2, or from `a2!`, which comes from the leader of a
    /// fail-over.
    fn reply(text: &str) -> SentinelReply {
        let (host, rest) = text.split_at(1);
        let epoch = rest.trim_end_matches('!').parse().expect("a number");
        SentinelReply {
            primary: primary(host, epoch),
            is_failing_over: rest.ends_with('!'),
        }
    }

    fn after(seconds: u64) -> Moment {
        Moment::from_nanos(1).after(Duration::from_secs(seconds))
    }

    /// Chooses among three sentinels, of which those in `text` reply.
    fn choose(choices: &mut Choices, text: &str, need: Need, seconds: u64) -> Option<String> {
        let replies: Vec<_> = text.split_whitespace().map(reply).collect();
        let chosen = choices.choose(&replies, 3, need, after(seconds));
        chosen.ok().map(|chosen| chosen.host)
    }

    #[test]
    fn the_choice_among_replies() {
        use Need::{Connect, Watch};
        // The earlier choices, one a second; the replies of the sentinels; and the host that is chosen in each case.
        let table = [
            ("", "a1", Some("a"), Some("a")),
            ("", "a1 b2 a1", Some("b"), Some("b")),
            // The leader of a fail-over names the old primary with the new epoch.
            ("", "a2! b2", Some("b"), Some("b")),
            ("", "a2! a1 a1", Some("a"), Some("a")),
            ("a1", "a2! a1 b2", Some("b"), Some("b")),
            ("a1", "a2!", None, None),
            ("a1 b2", "a2! b2", Some("b"), Some("b")),
            ("a1 b2", "a2! a1 a1", None, None),
            // Another address with the known epoch, and the switch back.
            ("a2", "b2", Some("b"), Some("b")),
            ("a2", "a2 b2 b2", Some("b"), Some("b")),
            ("a2", "a2 a2 b2", Some("a"), Some("a")),
            ("a2 b2", "a2", None, None),
            ("a2 b2", "a2 a2 b2", Some("b"), Some("b")),
            ("a2 b2", "a2 a2 a2", None, None),
            ("a2 b2", "a3", Some("a"), Some("a")),
            ("a2 b2", "c2 c2", Some("c"), Some("c")),
            // Replies from before the last fail-over.
            ("a1 b2", "a1 a1 a1", None, None),
            ("a1 b2", "a1 a1 b2", Some("b"), Some("b")),
            ("a1 b2", "c1 c1 c1", None, None),
            // Sentinels that were set up anew.
            ("a7", "b0", None, None),
            ("a7", "b0 b0", Some("b"), None),
            ("a7", "a0 a0", Some("a"), Some("a")),
        ];
        for (before, replies, on_connect, on_watch) in table {
            for (need, expected) in [(Connect, on_connect), (Watch, on_watch)] {
                let mut choices = Choices::default();
                for (second, earlier) in (1..).zip(before.split_whitespace()) {
                    choose(&mut choices, earlier, Connect, second).expect("the reply counts");
                }
                let chosen = choose(&mut choices, replies, need, 10);
                assert_eq!(chosen.as_deref(), expected, "{before}: {replies}: {need:?}");
            }
        }
    }

    #[test]
    fn the_order_of_replies_at_one_epoch_does_not_matter() {
        for replies in ["a2 b2", "b2 a2"] {
            let chosen = choose(&mut Choices::default(), replies, Need::Connect, 1);
            assert_eq!(chosen.as_deref(), Some("b"), "{replies}");
        }
    }

    #[test]
    fn long_after_a_switch_most_sentinels_may_cause_a_switch_back() {
        let mut choices = Choices::default();
        for (earlier, second) in [("a1", 1), ("b2", 2)] {
            choose(&mut choices, earlier, Need::Connect, second).expect("the reply counts");
        }
        assert_eq!(choose(&mut choices, "a0 a0", Need::Connect, 61), None);
        assert_eq!(choose(&mut choices, "a0", Need::Connect, 62), None);
        assert_eq!(choose(&mut choices, "a0 a0", Need::Watch, 62), None);
        let chosen = choose(&mut choices, "a0 a0", Need::Connect, 62);
        assert_eq!(chosen.as_deref(), Some("a"));
    }

    #[test]
    fn a_fail_over_of_sentinels_that_were_set_up_anew_replaces_their_earlier_replies() {
        let mut choices = Choices::default();
        for (replies, host) in [("a7", "a"), ("a0 a0", "a"), ("b1", "b")] {
            let chosen = choose(&mut choices, replies, Need::Watch, 1);
            assert_eq!(chosen.as_deref(), Some(host), "{replies}");
        }
    }

    fn bulk(words: &[&str]) -> Value {
        let bulk = |word: &&str| Value::BulkString(word.as_bytes().to_vec());
        Value::Array(words.iter().map(bulk).collect())
    }

    #[test]
    fn the_address_the_epoch_and_the_flags_are_read_from_their_fields() {
        let known = ["name", "m", "ip", "::1", "port", "7", "config-epoch", "3"];
        let named = |flags: &[&str]| SentinelReply::read(&bulk(&[&known, flags].concat()));
        let mut expected = SentinelReply {
            primary: KnownPrimary {
                host: "::1".to_owned(),
                port: 7,
                epoch: 3,
            },
            is_failing_over: false,
        };
        assert_eq!(named(&[]), Some(expected.clone()));
        assert_eq!(named(&["flags", "master,o_down"]), Some(expected.clone()));
        expected.is_failing_over = true;
        let flags = ["flags", "master,o_down,failover_in_progress"];
        assert_eq!(named(&flags), Some(expected));
        for odd in [
            bulk(&[]),
            bulk(&["ip"]),
            bulk(&["ip", "", "port", "7", "config-epoch", "3"]),
            bulk(&["ip", "a", "port", "70000", "config-epoch", "3"]),
            bulk(&["ip", "a", "port", "7"]),
            Value::Array(vec![Value::Nil, Value::Int(1)]),
        ] {
            assert_eq!(SentinelReply::read(&odd), None);
        }
    }
}
