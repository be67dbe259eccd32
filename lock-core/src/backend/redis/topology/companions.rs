//! The names of a lock's companion keys, chosen so that they are on the same node as the lock.
//!
//! A cluster assigns a key by its slot, which is a checksum of the key, or of the part between its first braces
//! ([specification](https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/)). All keys of one script must
//! be in one slot, so the names of the companions contain a tag, whatever braces the lock's key has. The tag is the smallest
//! number that hashes to the slot of the lock, so that all clients compute the same names for one lock.

use std::sync::{Arc, LazyLock, OnceLock};

use crate::{
    backend::redis::transport::{
        command::{
            Arg::{self, Number, Text},
            Commands, command,
        },
        redirect::SLOTS,
    },
    options::RESERVED,
};

/// The prefix of the channels on which grants arrive.
pub(crate) const GRANTS: &str = "__lock_core__:grants:";

/// The names of a lock's companions.
#[derive(Debug)]
pub(crate) struct Names {
    /// The fencing clock, one for all locks of a server or slot. It does not grow with the number of locks, so it has no
    /// expiry, and eviction policies for expiring keys spare it.
    pub(crate) clock: String,
    /// The command that takes the next id of that clock.
    pub(crate) next_id: Commands,
    /// The prefix before the full key, for the queue of the lock's waiters.
    pub(crate) queue: String,
    /// The prefix for the times of the waiters' last checks.
    pub(crate) beats: String,
    /// The prefix for the holders of a lock that is not exclusive.
    pub(crate) holders: String,
    /// The prefix for the numbers of the permits that the holders have.
    pub(crate) permits: String,
    /// The prefix for the results of bodies that ran once.
    pub(crate) results: String,
    /// The prefix for the marks of polling processes.
    pub(crate) asked: String,
    /// The channel on which the scripts publish the grants of this manager.
    pub(crate) channel: String,
    /// The full name of that channel.
    pub(crate) grants: Arc<str>,
    /// The prefix of the key of the lock that a check takes.
    pub(crate) check: String,
}

impl Names {
    /// Returns the names on a server that has all keys; `manager` is a random name.
    pub(crate) fn of_a_server(manager: &str) -> Self {
        Self::new(RESERVED, manager.to_owned())
    }

    /// Returns the names in a slot.
    fn of_a_slot(slot: u16, channel: String) -> Self {
        Self::new(&format!("{RESERVED}{{{}}}:", tag_in(slot)), channel)
    }

    /// Returns `true` if they are the names in a slot, in which case keys of different slots may be on different servers.
    pub(crate) fn are_of_a_slot(&self) -> bool {
        self.clock.contains('{')
    }

    fn new(front: &str, channel: String) -> Self {
        let clock = format!("{front}clock");
        Self {
            next_id: command(&[&clock_moved_to(&clock, "*")]),
            clock,
            queue: format!("{front}waiters:"),
            beats: format!("{front}beats:"),
            holders: format!("{front}holders:"),
            permits: format!("{front}seats:"),
            results: format!("{front}result:"),
            asked: format!("{front}asked:"),
            grants: format!("{GRANTS}{channel}").into(),
            check: format!("{front}check:"),
            channel,
        }
    }
}

/// The names of each slot that was used.
#[derive(Debug)]
pub(crate) struct SlotNames {
    each: Box<[OnceLock<Arc<Names>>]>,
    manager: String,
    has_one_channel: bool,
}

impl SlotNames {
    /// Creates names with a channel for the grants of each slot. Its name begins with a tag, by which the scripts recognise it.
    pub(crate) fn with_channels(manager: &str) -> Self {
        Self {
            each: (0..SLOTS).map(|_| OnceLock::new()).collect(),
            manager: manager.to_owned(),
            has_one_channel: false,
        }
    }

    /// Creates names with a single channel for all grants.
    pub(crate) fn with_one_channel(manager: &str) -> Self {
        Self {
            has_one_channel: true,
            ..Self::with_channels(manager)
        }
    }

    pub(crate) fn of(&self, slot: u16) -> Arc<Names> {
        let names = || {
            let channel = if self.has_one_channel {
                self.manager.clone()
            } else {
                format!("{{{}}}:{}", tag_in(slot), self.manager)
            };
            Arc::new(Names::of_a_slot(slot, channel))
        };
        self.each[usize::from(slot)].get_or_init(names).clone()
    }
}

/// The command that sets the fencing clock to this id, or to the next one for `*`. The stream stays empty, because `MAXLEN ~ 1`
/// would keep a hundred entries.
pub(crate) fn clock_moved_to<'a>(clock: &'a str, id: &'a str) -> [Arg<'a>; 7] {
    let (name, most, none) = (Text("XADD"), Text("MAXLEN"), Text(""));
    [name, Text(clock), most, Number(0), Text(id), none, none]
}

/// Returns the slot of a key.
pub(crate) fn slot_of(key: &str) -> u16 {
    let hashed = tag_of(key).unwrap_or(key);
    checksum(hashed.as_bytes()) % SLOTS
}

/// Returns a tag that has this slot.
pub(crate) fn tag_in(slot: u16) -> u32 {
    TAGS[usize::from(slot)]
}

/// Returns the text between the first opening brace and the next closing one, unless it is empty.
fn tag_of(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// CRC-16 as in XMODEM.
fn checksum(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    })
}

/// The largest tag. Each slot has a number that is not larger, as a test shows.
const LARGEST_TAG: u32 = 109_757;

/// For each slot, the smallest number whose digits have that slot. Computing it takes a few milliseconds, once in a process
/// that uses a cluster.
static TAGS: LazyLock<Box<[u32]>> = LazyLock::new(|| {
    let mut tags = vec![0; usize::from(SLOTS)];
    for number in (0..=LARGEST_TAG).rev() {
        tags[usize::from(slot_of(&number.to_string()))] = number;
    }
    tags.into()
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_that_a_server_computes() {
        // As `CLUSTER KEYSLOT` returned.
        for (key, slot) in [("lock:k", 14_041), ("lock:a", 6_035), ("123456789", 12_739)] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
    }

    #[test]
    fn braces_are_read_as_a_server_reads_them() {
        assert_eq!(slot_of("a{b}c"), slot_of("b"));
        assert_eq!(slot_of("a{b}{c}"), slot_of("b"));
        assert_eq!(slot_of("{{a}}"), slot_of("{a"));
        for whole in ["{}x", "{", "}{", "a{", "a}b"] {
            assert_eq!(
                slot_of(whole),
                checksum(whole.as_bytes()) % SLOTS,
                "{whole}"
            );
        }
    }

    #[test]
    fn companions_are_in_the_slot_of_their_lock_whatever_its_key() {
        let keys = [
            "lock:k", "a{b}c", "{}x", "{", "}{", "{{a}}", "{a}{b}", "x{}{y}", "ü{ö}", "",
        ];
        let all = SlotNames::with_channels("manager");
        let behind_an_endpoint = SlotNames::with_one_channel("manager");
        for key in keys {
            let slot = slot_of(key);
            for names in [all.of(slot), behind_an_endpoint.of(slot)] {
                let [queue, beats] =
                    [&names.queue, &names.beats].map(|front| format!("{front}{key}"));
                for name in [&names.clock, &queue, &beats, &names.check] {
                    assert_eq!(slot_of(name), slot, "{name} of {key}");
                }
            }
            assert_eq!(slot_of(&all.of(slot).grants), slot);
        }
    }

    #[test]
    fn every_slot_has_a_different_tag() {
        assert_eq!(TAGS.len(), usize::from(SLOTS));
        for slot in 0..SLOTS {
            let tag = TAGS[usize::from(slot)];
            assert_eq!(slot_of(&tag.to_string()), slot);
            assert!(tag <= LARGEST_TAG, "{tag}");
        }
    }
}
