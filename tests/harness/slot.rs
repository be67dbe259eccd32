//! Computes the slot of a key in a cluster.

use std::ops::RangeInclusive;

/// All slots of a cluster.
pub(crate) const SLOTS: RangeInclusive<u16> = 0..=16_383;

/// Returns the slot of a key: CRC16 (XMODEM) of the key, or of its tag.
///
/// The tag is the text between the first `{` and the next `}`, if that text is not empty.
pub fn slot_of(key: &str) -> u16 {
    crc16(tag(key).as_bytes()) & *SLOTS.end()
}

/// Returns the smallest number that, as a tag in the name of a key, leads to a slot.
pub fn tag_of_slot(slot: u16) -> String {
    // The bound is far above the largest of these numbers.
    (0..1_000_000_u32)
        .map(|number| number.to_string())
        .find(|number| slot_of(number) == slot)
        .expect("every slot has such a number")
}

fn tag(key: &str) -> &str {
    let inner = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    match inner {
        Some((tag, _)) if !tag.is_empty() => tag,
        _ => key,
    }
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            let shifted = crc << 1;
            if crc & 0x8000 == 0 {
                shifted
            } else {
                shifted ^ 0x1021
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::RedisServer;

    fn slot_by_a_server(server: &RedisServer, key: &str) -> u16 {
        let reply = server.cli(&["CLUSTER", "KEYSLOT", key]);
        redis::from_redis_value(reply).unwrap()
    }

    #[test]
    fn a_server_computes_the_same_slots() {
        let server = RedisServer::builder().cluster_node().start();
        for key in [
            "k",
            "123456789",
            "lock:k",
            "a{b}c",
            "{}x",
            "{",
            "}{",
            "{{a}}",
            "a{b}{c}",
            "a{}{c}",
            "a}{b",
            "{ü}:é",
            "",
            "{a",
        ] {
            assert_eq!(slot_of(key), slot_by_a_server(&server, key), "{key:?}");
        }
    }
}
